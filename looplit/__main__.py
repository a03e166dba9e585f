"""`python -m looplit`: light commands are answered before torch and Lightning are imported."""

from __future__ import annotations

import importlib
import os
import signal
import sys

import looplit

HELP = """\
usage: python -m looplit COMMAND ...

plan (answered at once; no model is built)
  recipe     the run of a family and depth or loop setting: recipe untied_grow 26; recipe truncated_loop --passes 8
  plan       what a run will do and need, e.g. plan --config configs/untied_grow_d26.yaml

prepare data
  prepare    tokenize FineWeb, a hub dataset or your own files: prepare fineweb-edu --folder data/fineweb_edu

measure
  evaluate   CORE, 22 downstream tasks: evaluate --ckpt_path X [Y …]
  lens       logit lens and KL effective depth of checkpoints: lens --ckpt_path X [Y …]
  passes     loss at other numbers of passes: passes --ckpt_path X --passes 1,2,4,8
  laws       scaling laws from finished runs: laws ladder|vertex|forecast|recurrence|residuals
  loops      truncate or not: what (T, B) is worth, e.g. loops --T 8 --B 2; loops worth|optimum|frontier|fit

train and evaluate (each with --help; --print_config shows every setting)
  fit        train, e.g. fit --config configs/demo.yaml
  validate   validation loss of a checkpoint
  test       the same on the test data of a data module that has some
  predict    loss of every token of the validation data
  consolidate  one file from a sharded checkpoint: consolidate --ckpt_path X --out Y

Options are written with underscores, as in a config; a hyphen is taken for one: --batch_tokens, --batch-tokens.

  --version  print the version
  --help     print this
"""


# Commands that import torch, if at all, after their arguments are read, and the function that takes their arguments.
LIGHT = {
    "recipe": ("looplit.commands.recipe", "recipe_main"),
    "plan": ("looplit.commands.plan", "plan_main"),
    "laws": ("looplit.commands.laws.command", "laws_main"),
    "prepare": ("looplit.commands.prepare", "prepare_main"),
    "evaluate": ("looplit.commands.evaluate", "evaluate_main"),
    "lens": ("looplit.commands.lens", "lens_main"),
    "passes": ("looplit.commands.passes", "passes_main"),
    "consolidate": ("looplit.commands.consolidate", "consolidate_main"),
    "loops": ("looplit.commands.loops.command", "loops_main"),
}
TRAINING = ("fit", "validate", "test", "predict")
"""Commands of the Lightning command line."""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 1 (the run stopped), 2 (wrong input), 128 + signal."""
    try:
        try:
            return _run_command(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # so that a closed pipe shows here, and not at the interpreter's end
    except BrokenPipeError:  # the reader, `head` for example, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run_command(args: list[str]) -> int:
    command = args[0] if args else "--help"
    if command == "--version":
        print(f"looplit {looplit.__version__}")
        return 0
    if command in ("--help", "-h", "help"):
        print(HELP, end="")
        return 0
    # Threads that wait in a busy loop make a step up to ten times slower where other programs want the cores too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from looplit.errors import InputError, RunStopped, require

    try:
        if command in LIGHT:
            module, function = LIGHT[command]
            return int(getattr(importlib.import_module(module), function)(args[1:]))
        require(command in TRAINING or command.startswith("-"), "command", command,
                f"must be one of {', '.join([*LIGHT, *TRAINING])}")  # fmt: skip
        from looplit.cli import run

        run(args)
        return 0
    except BrokenPipeError:
        raise
    except InputError as error:
        return _refuse(str(error))
    except UnicodeDecodeError as error:
        return _refuse(f"a file that should be text is not ({error})")
    except OSError as error:
        return _refuse(str(error))
    except RunStopped as stop:
        _say(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return 128 + signal.SIGINT


def _refuse(reason: str) -> int:
    _say(f"error: {reason}")
    return 2


def _say(line: str) -> None:
    """Writes a line in one go: `print` writes the end of it by itself, and other processes' lines get between."""
    sys.stderr.write(f"looplit: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
