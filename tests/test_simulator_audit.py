"""What an audit finds in kernels with one fault each, and that it finds nothing in kernels without."""

import numpy as np
import pytest
from numba import cuda, float32

import simulator_kernels as kernels
from cuda_kernels import simulator
from simulator_kernels import line

pytestmark = pytest.mark.slow


def audited(kernel, grid, block, *args, shared=0):
    with simulator.audit() as a:
        kernel[grid, block, 0, shared](*args)
    return a


def ones(*shape):
    return np.ones(shape, np.float32)


# --- faults ---

@pytest.mark.parametrize(("kernel", "grid", "texts"), [
    (kernels.load_without_barrier, 1, ("# writes", "# reads")),
    (kernels.sum_without_barrier, 1, ("# both", "# both")),
    (kernels.tile_used_too_soon, 1, ("# writes", "# reads")),
    (kernels.warp_without_syncwarp, 1, ("# writes", "# reads")),
    (kernels.add_without_atomic, 2, ("# both", "# both"))], ids=lambda value: getattr(value, "__name__", None))
def test_a_race_names_both_lines(kernel, grid, texts):
    for threads in (8, 32) if grid == 1 else (1, 4):
        a = audited(kernel, grid, threads, ones(64), ones(64))
        assert a.findings and a.findings == a.races and not a.ok
        assert {tuple(f.lines) for f in a.races} == {tuple(line(kernel, text) for text in texts)}
        for f in a.races:
            assert f.first.file == f.second.file == kernels.__file__ and f.first.thread != f.second.thread
            assert "writes" in (f.first.action, f.second.action)


def test_a_finding_tells_array_cell_threads_and_count():
    a = audited(kernels.load_without_barrier, 2, 8, ones(8), ones(8))
    at = {text: line(kernels.load_without_barrier, text) for text in ("# writes", "# reads")}
    made = line(kernels.load_without_barrier, "cuda.shared.array")
    shared, = [f for f in a.races if f.array.startswith("s ")]
    assert str(shared) == (f"race: s (shared, simulator_kernels.py:{made})[4] (and 15 more)\n"
                           f"    thread 3 of block (0, 0, 0) reads at {kernels.__file__}:{at['# reads']}\n"
                           f"    thread 4 of block (0, 0, 0) writes at {kernels.__file__}:{at['# writes']}")
    both, = [f for f in a.races if f.array == "out"]            # the two blocks write the same cells
    assert (both.index, both.count, both.second.thread) == ((0,), 8, "thread 0 of block (1, 0, 0)")


def test_a_barrier_under_a_branch():
    a = audited(kernels.branched_barrier, 3, 4, ones(4), ones(12))
    divergence, = a.divergences
    assert divergence.lines == [line(kernels.branched_barrier, text) for text in ("# some", "# the others")]
    assert divergence.array == "syncthreads" and divergence.count == 3
    assert audited(kernels.branched_barrier, 1, 2, ones(2), ones(2)).ok        # all go the same way


def test_a_barrier_in_a_helper_that_two_branches_call():
    @cuda.jit(device=True)
    def meet():
        cuda.syncthreads()

    @cuda.jit
    def kernel():
        if cuda.threadIdx.x:
            meet()                                              # some
        else:
            meet()                                              # the others

    divergence, = audited(kernel, 1, 2).findings
    assert divergence.lines == [line(kernel, "# some"), line(kernel, "# the others")]


def test_a_thread_that_returned_before_a_barrier():
    a = audited(kernels.early_return, 1, 5, ones(3), ones(3))
    divergence, = a.findings
    assert divergence.lines == [line(kernels.early_return, "# not all")]
    assert str(divergence.second) == "thread 3 of block (0, 0, 0) has returned"
    assert audited(kernels.early_return, 1, 3, ones(3), ones(3)).ok


def test_a_lane_that_returned_before_a_vote():
    @cuda.jit
    def kernel(mask):
        if cuda.threadIdx.x != 3:
            cuda.any_sync(mask, 1)

    finding, = audited(kernel, 1, 32, 0xFFFFFFFF).findings
    assert (finding.kind, finding.array) == ("divergence", "any_sync")
    assert finding.second.thread == "thread 3 of block (0, 0, 0)"
    assert audited(kernel, 1, 3, 0xFFFFFFFF).ok                 # lanes that never were are not missed


def test_shared_memory_read_before_it_is_written():
    a = audited(kernels.unwritten, 2, 4, ones(4), ones(4))
    assert [f.kind for f in a.findings] == ["uninitialised", "race"]           # the race: both blocks write out
    finding, = a.uninitialised
    assert (finding.index, finding.lines, finding.count) == ((3,), [line(kernels.unwritten, "# reads")], 2)


def test_an_audit_of_one_thread():
    finding, = audited(kernels.unwritten, 1, 1, ones(1), ones(1)).findings
    assert finding.kind == "uninitialised" and "thread 0" in finding.first.thread
    assert audited(kernels.tree_sum, 1, 1, ones(1, 1), ones(1)).ok


@cuda.jit
def reused(out, first, second):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = 1                                                    # four bytes
    if first:
        cuda.syncthreads()
    s.view(np.int16)[2 * (t ^ 1) + 1] = 0                       # two bytes of the neighbour
    if second:
        cuda.syncthreads()
    out[t] = s[t]                                               # again


def test_views_of_another_type_and_slices_are_the_same_cells():
    four, two, again = (line(reused, text) for text in ("# four", "# two", "# again"))
    assert audited(reused, 1, 4, ones(4), 1, 1, shared=16).ok
    race, = audited(reused, 1, 4, ones(4), 0, 1, shared=16).findings
    assert race.lines == [four, two] and race.count == 4
    race, = audited(reused, 1, 4, ones(4), 1, 0, shared=16).findings
    assert race.lines == [two, again]

    @cuda.jit
    def sliced(out):
        s = cuda.shared.array((2, 4), float32)
        t = cuda.threadIdx.x
        s[1][2:][t] = 1                                         # writes
        out[t] = s.T[3 - t, 1]                                  # reads

    race, = audited(sliced, 1, 2, ones(2)).findings
    assert race.lines == [line(sliced, "# writes"), line(sliced, "# reads")] and race.index in ((1, 2), (1, 3))


def test_neighbours_of_small_types_do_not_race():
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(0, np.int8)
        t = cuda.threadIdx.x
        s[t] = t
        s.view(np.int8)[t] += 1
        out[t] = s[t]

    assert audited(kernel, 1, 32, ones(32), shared=32).ok


def test_atomics_race_with_plain_accesses_only():
    @cuda.jit
    def kernel(out, plain):
        cuda.atomic.add(out, 0, 1)                              # first
        if plain and cuda.threadIdx.x == 1:
            out[0] = 2                                          # plain
        cuda.atomic.max(out, 0, 1)                              # second

    assert audited(kernel, 2, 2, ones(1), False).ok
    first, plain, second = (line(kernel, text) for text in ("# first", "# plain", "# second"))
    race, = audited(kernel, 1, 2, ones(1), True).findings       # with the last update that thread 0 made
    assert race.lines == [plain, second]
    races = audited(kernel, 2, 2, ones(1), True).findings       # of the other block, all may come at any time
    assert sorted(race.lines for race in races) == [[first, plain], [plain, plain], [plain, second]]


def test_an_atomic_update_is_remembered_behind_a_later_one():
    @cuda.jit
    def kernel(out):
        cuda.atomic.add(out, 0, 1)
        if cuda.threadIdx.x == 1:
            out[1] = out[0]                                     # thread 0's update may come later

    assert len(audited(kernel, 1, 2, ones(2)).races) == 1


def test_launches_are_ordered():
    @cuda.jit
    def kernel(out):
        out[cuda.gridDim.x - 1 - cuda.blockIdx.x] += 1

    with simulator.audit() as a:
        x = cuda.to_device(ones(3))
        for _ in range(3):
            kernel[3, 1](x)
    assert a.ok and a.counts.global_writes == 9 and a.counts.blocks == 9


def test_whole_array_operations_are_accesses():
    @cuda.jit
    def kernel(x):
        s = cuda.shared.array((2, 3), float32)
        if cuda.threadIdx.x == 0:
            s[...] = 0
            s[:] = x
            s.fill(2)
            row = s[1]
            row += 1
            np.multiply(s[0], x[0], s[0])                       # writes
        else:
            x[1, :2] = s[0, 1:]                                 # reads

    a = audited(kernel, 1, 2, ones(2, 3))
    race, = [f for f in a.races if f.array.startswith("s")]
    assert race.lines == [line(kernel, "# writes"), line(kernel, "# reads")] and race.count == 2
    c = a.counts
    assert (c.shared_reads, c.shared_writes, c.global_reads, c.global_writes) == (3 + 3 + 2, 6 * 3 + 3 + 3, 6 + 3, 2)


# --- no faults ---

def clean_run(rng):
    """A right kernel with a random size and number of threads: (kernel, grid, block, shared bytes, arguments)."""
    blocks = int(rng.integers(1, 4))
    match rng.integers(5):
        case 0:
            threads = int(rng.integers(1, 40))
            return kernels.tree_sum, blocks, threads, 0, [ones(blocks, threads), ones(blocks)]
        case 1:
            n, m, k = (int(size) for size in rng.integers(1, 4, 3) * kernels.TILE)
            grid = m // kernels.TILE, n // kernels.TILE
            return kernels.tiled_matmul, grid, (kernels.TILE, kernels.TILE), 0, [ones(n, k), ones(k, m), ones(n, m)]
        case 2:
            threads = 32 * int(rng.integers(1, 4))
            return kernels.shuffle_sum, blocks, threads, 0, [ones(blocks, threads), ones(blocks)]
        case 3:
            bins = rng.integers(0, 8, int(rng.integers(1, 100)))
            return kernels.histogram, blocks, int(rng.integers(1, 20)), 0, [bins, np.zeros(8, np.int32)]
        case _:
            threads, n = (int(size) for size in rng.integers(1, 12, 2))
            return kernels.softmax_rows, blocks, threads, 4 * (n + threads), [ones(blocks, n), 0.5]


def test_no_false_alarm_in_200_runs():
    rng = np.random.default_rng()
    for _ in range(200):
        kernel, grid, block, shared, args = clean_run(rng)
        a = audited(kernel, grid, block, *args, shared=shared)
        assert a.ok, (kernel.__name__, grid, block, str(a))


# --- counts ---

@pytest.mark.parametrize("threads", [1, 2, 5, 16])
def test_counts_of_a_tree(threads):
    a = audited(kernels.tree_sum, 3, threads, ones(3, threads), ones(3))
    levels = int(np.ceil(np.log2(threads)))
    assert a.ok
    assert vars(a.counts) == {
        "blocks": 3, "barriers": 3 * (1 + levels), "syncwarps": 0, "shuffles": 0, "votes": 0,
        "matrix_loads": 0, "matrix_products": 0,
        "shared_reads": 3 * (2 * (threads - 1) + 1), "shared_writes": 3 * (2 * threads - 1),
        "global_reads": 3 * threads, "global_writes": 3, "atomics": 0}
    assert [(name, index) for name, index, _ in a.blocks] == [("tree_sum", (b, 0, 0)) for b in range(3)]
    assert all(counts.barriers == 1 + levels for _, _, counts in a.blocks)


def test_counts_of_atomics():
    a = audited(kernels.histogram, 2, 4, np.zeros(10, int), np.zeros(8, np.int32))
    assert (a.counts.atomics, a.counts.shared_reads, a.counts.shared_writes) == (10 + 2 * 8, 2 * 8, 2 * 8)
    assert (a.counts.global_reads, a.counts.global_writes, a.counts.barriers) == (10, 0, 4)


def test_the_table():
    a = audited(kernels.tree_sum, 1, 2, ones(1, 2), ones(1))
    assert str(a) == a.table()
    rows = [row.split() for row in a.table().splitlines()]
    assert ["shared", "reads", "3"] in rows and rows[-1] == ["nothing", "found"]
    bad = audited(kernels.unwritten, 1, 1, ones(1), ones(1))
    assert str(bad).endswith(str(bad.findings[0]))


def test_an_audit_changes_no_result_and_is_over_after_an_error():
    x, y = np.random.default_rng(0).standard_normal((2, 3, 7), np.float32)
    plain, watched = np.zeros((2, 3), np.float32)
    kernels.tree_sum[3, 7](x, plain)
    audited(kernels.tree_sum, 3, 7, x, watched)
    np.testing.assert_array_equal(plain, watched)
    with pytest.raises(IndexError), simulator.audit() as a:
        kernels.tree_sum[4, 7](y, plain)
    assert a.counts.blocks == 4
    assert audited(kernels.tree_sum, 3, 7, y, plain).ok
