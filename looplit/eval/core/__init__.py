"""CORE: the 22 downstream tasks of the growth study (appendix C.2), with accuracy and answer NLL.

>>> from looplit.eval.core import evaluate, find_bundle, plan_evaluation
>>> plan = plan_evaluation(find_bundle(), "gpt2")  # doctest: +SKIP
>>> evaluate(model, plan)["core_metric"]  # doctest: +SKIP
"""

from looplit.eval.core.bundle import LABELS, PUBLISHED_FINGERPRINT, Bundle, Task, fingerprint, open_bundle
from looplit.eval.core.evaluation import Plan, evaluate, plan_evaluation
from looplit.eval.core.fetch import find_bundle
from looplit.eval.core.metric import TaskScores
from looplit.eval.core.scoring import Outcome
from looplit.eval.core.summary import FILTERED, TaskResult, centered, select_tasks, summarize, table

__all__ = [
    "FILTERED",
    "LABELS",
    "PUBLISHED_FINGERPRINT",
    "Bundle",
    "Outcome",
    "Plan",
    "Task",
    "TaskResult",
    "TaskScores",
    "centered",
    "evaluate",
    "find_bundle",
    "fingerprint",
    "open_bundle",
    "plan_evaluation",
    "select_tasks",
    "summarize",
    "table",
]
