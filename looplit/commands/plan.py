"""`python -m looplit plan`: what a run will do and need. No torch here, and no model is built."""

from __future__ import annotations

from looplit.commands.arguments import CommandParser, integer, number
from looplit.commands.output import output_options, print_json
from looplit.planning.card import plan_card
from looplit.planning.config_files import read_configs
from looplit.planning.plan import plan_config
from looplit.planning.resources import DEVICES, TYPICAL_MFU
from looplit.wording import is_numeral


def plan_main(argv: list[str]) -> int:
    """`plan --config FILE … [--trainer.max_steps N …]`: prints what a run will do and need.

    Raises:
        InputError: Wrong input, in one line.
    """
    args, overrides = plan_parser().parse_known_args(argv)
    device = args.device if args.device in DEVICES or not is_numeral(args.device) else float(args.device)
    plan = plan_config(read_configs(args.config, overrides), args.devices)
    if args.json:
        print_json(plan.to_dict(device, args.mfu))
    else:
        print(plan_card(plan, device, args.mfu), end="")
    return 0


def plan_parser() -> CommandParser:
    """The options of `plan`."""
    parser = CommandParser(
        "plan",
        "--config FILE",
        description="What a config will do, without building the model. "
        "Overrides follow as in fit: --model.depth 8 --trainer.devices 1",
    )
    add = parser.add_argument_group("run").add_argument
    add("--config", action="append", required=True, metavar="FILE", help="config; later ones go over earlier ones")
    add = parser.add_argument_group("machine").add_argument
    add("--devices", type=integer, help="devices in all, in place of those the config names")
    add("--device", default="h100", help=f"{', '.join(DEVICES)}, or its FLOPs per second")
    add("--mfu", type=number, default=TYPICAL_MFU, help="model FLOPs utilisation")
    output_options(parser)
    return parser
