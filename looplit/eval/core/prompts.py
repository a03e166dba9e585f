"""From an example to tokens: demonstrations, prompts, scored spans (growth study, appendix C.2)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tiktoken

from looplit.data.tokenizer import Tokens, token_dtype
from looplit.eval.core.bundle import Example, Task

BLANK_LINE = "\n\n"
# Encodings whose pattern never joins a character that is not white space to white space after it.
_SPLITS_BEFORE_SPACE = ("bytes", "gpt2", "r50k_base", "p50k_base")


@dataclass(frozen=True, slots=True)
class Question:
    """An example with its demonstrations as tokens, cropped to the context: one sequence per choice.

    Sequence c is `prefix` and then `branches[branch_of[c]]`. Choices with equal tokens share a branch, so that they
    get equal losses. Spans count in tokens of the sequence and reach to its end.

    Args:
        example: Index in the shuffled task.
        seed: Of the demonstrations.
        prefix: What all sequences begin with.
        branches: How the different ones go on.
        branch_of: Branch of every choice.
        starts: Where the scored span of every choice begins.
        answer_start: Where the gold answer begins, for the answer NLL.
        gold: The right choice.
        by_argmax: Language modelling: right if every token of the span has the highest probability.
        splits_token: Language modelling: the prompt's tokens are no prefix of the whole, so that the span begins
            earlier, at the common prefix.
    """

    example: int
    seed: int
    prefix: Tokens
    branches: tuple[Tokens, ...]
    branch_of: tuple[int, ...]
    starts: tuple[int, ...]
    answer_start: int
    gold: int
    by_argmax: bool
    splits_token: bool

    def sequence(self, branch: int) -> Tokens:
        """All tokens of one branch."""
        return np.concatenate((self.prefix, self.branches[branch]))

    def first_read(self, choice: int) -> int:
        """The first token of a choice whose loss is needed."""
        start = self.starts[choice]
        return min(start, self.answer_start) if choice == self.gold else start

    def length(self, choice: int) -> int:
        """Tokens of a choice's sequence."""
        return len(self.prefix) + len(self.branches[self.branch_of[choice]])


class SegmentEncoder:
    """Encodes texts given in segments, every segment once, exactly as the joined text would be encoded.

    Segments after the first must begin with a line break. The text is cut only where no token can span the cut.
    """

    def __init__(self, tokenizer: tiktoken.Encoding) -> None:
        self.tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.n_vocab)
        self._first = np.array([tokenizer.eot_token], self._dtype)
        self._known: dict[str, Tokens] = {}

    def encode(self, segments: Sequence[str]) -> Tokens:
        """`<|endoftext|>` and the tokens of the joined segments."""
        return np.concatenate([self._first, *map(self._encode, self._joined(segments))])

    def _joined(self, segments: Sequence[str]) -> Iterator[str]:
        pending = ""
        for segment in segments:
            if pending and self._ends_piece(pending[-1]):
                yield pending
                pending = ""
            pending += segment
        yield pending

    def _ends_piece(self, character: str) -> bool:
        if self.tokenizer.name in _SPLITS_BEFORE_SPACE:
            return not character.isspace()
        return character.isalnum()  # later patterns take line breaks into the punctuation before them

    def _encode(self, text: str) -> Tokens:
        if text not in self._known:
            self._known[text] = np.array(self.tokenizer.encode_ordinary(text), self._dtype)
        return self._known[text]


def demonstrations(n_examples: int, example: int, n_shots: int, seed: int) -> list[int]:
    """Indices of the demonstrations of one example: `random.Random(seed + example).sample(others, k)`.

    `others` are all other indices of the whole task in order, k = min(n_shots, len(others)).

    >>> demonstrations(5, 2, 10, seed=0)  # never the example itself
    [0, 4, 3, 1]
    """
    others = n_examples - 1
    drawn = random.Random(seed + example).sample(range(others), min(n_shots, others))
    return [index + (index >= example) for index in drawn]


def prompt(task: Task, shots: Sequence[Example], example: Example, choice: int) -> list[str]:
    """The segments of a whole prompt: demonstrations with their gold answers, the query and one answer.

    Segments are joined by a blank line, which is part of the segment after it. In language modelling a context is
    stripped; in multiple choice the whole prompt is.
    """
    texts = [_demonstration(task, shot) for shot in shots]
    texts.append(_query(task, example, choice) + example.answers[choice])
    segments = _joined_by_blank_lines(texts)
    return _stripped(segments) if task.kind == "multiple_choice" else segments


def prompt_without_answer(task: Task, shots: Sequence[Example], example: Example) -> list[str]:
    """What comes before the gold answer.

    Multiple choice and schema: the whole prompt without the answer's characters, the delimiter kept. Language
    modelling: the prompt without continuation, stripped.
    """
    texts = [_demonstration(task, shot) for shot in shots]
    texts.append(_query(task, example, example.gold))
    segments = _joined_by_blank_lines(texts)
    if task.kind == "language_modeling":
        return _stripped(segments)
    return _stripped(segments, right=False) if task.kind == "multiple_choice" else segments


def ask(
    task: Task, examples: Sequence[Example], example: int, seed: int, encoder: SegmentEncoder, context: int
) -> Question | None:
    """The question that an example becomes; None where a scored span does not fit into the context.

    Args:
        task: Kind, delimiter and number of demonstrations.
        examples: The whole shuffled task.
        example: Index of the example.
        seed: Of the demonstrations.
        encoder: Remembers the segments of the task.
        context: Tokens that are kept of a longer sequence, its last ones.
    """
    chosen = examples[example]
    shots = [examples[j] for j in demonstrations(len(examples), example, task.n_shots, seed)]
    whole = [encoder.encode(prompt(task, shots, chosen, choice)) for choice in range(len(chosen.answers))]
    before = encoder.encode(prompt_without_answer(task, shots, chosen))
    answer_start = common_prefix([whole[chosen.gold], before])
    by_argmax = task.kind == "language_modeling"
    if by_argmax:
        starts = [answer_start]
    elif task.kind == "multiple_choice":
        starts = [common_prefix(whole)] * len(whole)
    else:
        ending = common_prefix([tokens[::-1] for tokens in whole])
        starts = [max(1, len(tokens) - ending) for tokens in whole]  # nothing predicts the first token
    cropped = [max(0, len(tokens) - context) for tokens in whole]
    sequences = [tokens[left:] for tokens, left in zip(whole, cropped, strict=True)]
    starts = [start - left for start, left in zip(starts, cropped, strict=True)]
    answer_start -= cropped[chosen.gold]
    if min(*starts, answer_start) < 1:
        return None
    shared = common_prefix(sequences)
    distinct: dict[bytes, int] = {}
    branch_of = tuple(distinct.setdefault(tokens.tobytes(), len(distinct)) for tokens in sequences)
    branches = tuple(sequences[branch_of.index(branch)][shared:] for branch in range(len(distinct)))
    return Question(
        example=example,
        seed=seed,
        prefix=sequences[0][:shared],
        branches=branches,
        branch_of=branch_of,
        starts=tuple(starts),
        answer_start=answer_start,
        gold=chosen.gold,
        by_argmax=by_argmax,
        splits_token=by_argmax and answer_start + cropped[0] < len(before),
    )


def common_prefix(sequences: Sequence[Tokens]) -> int:
    """How many tokens all sequences have in common from the left.

    >>> common_prefix([np.array([1, 2, 3]), np.array([1, 2]), np.array([1, 2, 4])])
    2
    """
    shortest = min(map(len, sequences))
    for other in sequences[1:]:
        differs = np.flatnonzero(sequences[0][:shortest] != other[:shortest])
        shortest = int(differs[0]) if len(differs) else shortest
    return shortest


def _demonstration(task: Task, example: Example) -> str:
    return _query(task, example, example.gold) + example.answers[example.gold]


def _query(task: Task, example: Example, choice: int) -> str:
    query = example.queries[choice]
    return (query.strip() if task.kind == "language_modeling" else query) + task.delimiter


def _joined_by_blank_lines(texts: Sequence[str]) -> list[str]:
    return [texts[0], *(BLANK_LINE + text for text in texts[1:])]


def _stripped(segments: list[str], right: bool = True) -> list[str]:
    """The segments whose joined text is the stripped joined text."""
    while segments and not segments[0].strip():
        segments = segments[1:]
    while right and segments and not segments[-1].strip():
        segments = segments[:-1]
    if not segments:
        return [""]
    segments = [segments[0].lstrip(), *segments[1:]]
    return [*segments[:-1], segments[-1].rstrip()] if right else segments
