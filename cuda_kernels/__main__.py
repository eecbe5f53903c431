"""The commands: `python -m cuda_kernels tour | debug | counts | speed`; each tells its options with --help."""

import importlib
import sys

COMMANDS = {
    "tour": "every kernel against the truth on real data, and what happens on chip",
    "debug": "a debugger inside a kernel on a tiny problem, with one thread in the simulator",
    "counts": "split-K against split-Q: barriers, shuffles and shared memory of fa1_warps and fa2_warps",
    "speed": "what the simulator costs, beside Numba's own",
}
IN_THE_SIMULATOR = ("debug", "counts", "speed")


def main(argv):
    """Run one command; an unknown one prints the list and returns 2."""
    if not argv or argv[0] not in COMMANDS:
        wanted = argv and argv[0] in ("-h", "--help")
        print("usage: python -m cuda_kernels COMMAND ...", *(f"  {name:6} {told}" for name, told in COMMANDS.items()),
              sep="\n", file=sys.stdout if wanted else sys.stderr)
        return 0 if wanted else 2
    where = "cuda_kernels.simulator" if argv[0] == "speed" else "cuda_kernels"
    module = importlib.import_module(f"{where}.{argv[0]}")
    return module.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
