"""The commands: `python -m cuda_kernels NAME`, with a NAME of COMMANDS."""

import importlib
import sys

import cuda_kernels

COMMANDS = {
    "tour": "every kernel against the truth on real data, and what happens on chip",
    "debug": "a debugger inside a kernel on a tiny problem, with one thread in the simulator (options: debug --help)",
    "play": "a kernel's run as a web page, to step through forwards and backwards (options: play --help)",
    "counts": "split-K against split-Q: barriers, shuffles and shared memory of fa1_warps and fa2_warps",
    "speed": "what the simulator costs, beside Numba's own",
    "bench": "how fast the kernels on tensor cores are on this GPU, beside torch's attention (options: bench --help)",
    "profile": "what these kernels wait for, as the hardware counts it: Nsight Compute (options: profile --help)",
    "tiles": "the backward pass on tensor cores with tiles of other shapes, timed on a GPU (options: tiles --help)",
    "ladder": "nine kernels on tensor cores, one idea apart, timed on a GPU (options: ladder --help)",
    "train": "a small GPT trained with our attention, with torch's and with standard attention (options: train --help)",
}
MODULES = {"play": "cuda_kernels.player", "speed": "cuda_kernels.simulator.speed",
           "profile": "cuda_kernels.bench.profile", "tiles": "cuda_kernels.bench.tiles",
           "ladder": "cuda_kernels.ladder.measure"}             # the others: cuda_kernels.NAME
WITH_OPTIONS = ("debug", "play", "bench", "profile", "tiles", "ladder", "train")
ONLY_SIMULATED = ("play", "counts", "speed")


def main(argv):
    """Run one command; returns 2, with the list of commands, for what is none."""
    name, *options = argv or [""]
    if name not in COMMANDS or (options and name not in WITH_OPTIONS):
        asked = name in ("-h", "--help") or options in (["-h"], ["--help"])
        if name and name not in COMMANDS and not asked:
            print(f"there is no command {name!r}", file=sys.stderr)
        print("usage: python -m cuda_kernels COMMAND", *(f"  {known:7} {told}" for known, told in COMMANDS.items()),
              sep="\n", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    if name in ONLY_SIMULATED and not cuda_kernels.SIMULATED:
        print(f"{name} is about the simulator, and kernels run on the GPU here: set FA_REF_CUDA=sim", file=sys.stderr)
        return 2
    module = importlib.import_module(MODULES.get(name, f"cuda_kernels.{name}"))
    return module.main(options) if name in WITH_OPTIONS else module.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
