"""The commands: `python -m fa_ref tour | debug | play | tables | schedule | check | bench`; --help tells options."""

import importlib
import sys

COMMANDS = {
    "tour": ("fa_ref.tour", "every algorithm against the truth on real data, then one tiny problem step by step"),
    "debug": ("fa_ref.debug", "a debugger inside the tiling loop of a tiny problem"),
    "play": ("fa_ref.player", "a run as a web page, to step through forwards and backwards"),
    "tables": ("fa_ref.tables", "the papers' figures beside ours"),
    "schedule": ("fa_ref.schedule", "who runs when: blocks, warps, FlashAttention-3's overlap"),
    "check": ("fa_ref.testing.check", "property-test an attention function, ours or yours"),
    "bench": ("fa_ref.bench", "time and memory as ratios, all measured in one run"),
}


def main(argv):
    """Run one command; an unknown one prints the list and returns 2."""
    if not argv or argv[0] not in COMMANDS:
        wanted = argv and argv[0] in ("-h", "--help")
        if argv and not wanted:
            print(f"there is no command {argv[0]!r}", file=sys.stderr)
        print("usage: python -m fa_ref COMMAND ...", *(f"  {c:8} {COMMANDS[c][1]}" for c in COMMANDS), sep="\n",
              file=sys.stdout if wanted else sys.stderr)
        return 0 if wanted else 2
    module = importlib.import_module(COMMANDS[argv[0]][0])
    return module.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
