"""`with simulator.audit() as a:` counts what kernels do inside, and reports races and uneven barriers."""

from dataclasses import fields

from cuda_kernels.simulator.findings import Counts
from cuda_kernels.simulator.watched import LaunchWatch


class Audit:
    """A context manager. All launches inside are watched; afterwards:

    counts      barriers, shuffles, memory traffic over all blocks (`Counts`)
    blocks      the same per block: (kernel's name, index of the block, Counts)
    findings    all faults, each kind between two lines once; races, divergences, uninitialised are parts of it
    ok          nothing was found
    print(a), a.table()
    """

    active = None                                       # the audit that is on

    def __init__(self):
        self.blocks, self.found = [], {}                # what makes a finding the same → (Finding, cells seen at)

    def __enter__(self):
        if Audit.active:
            raise RuntimeError("an audit is on already; audits do not nest")
        Audit.active = self
        return self

    def __exit__(self, *_):
        Audit.active = None

    def launch(self, kernel, lanes):
        """A watch on a launch of this kernel."""
        return LaunchWatch(self, kernel, lanes)

    def add(self, finding, where):
        """Keep a finding; the same one at another cell only counts."""
        sides = [(side.action, side.file, side.line) for side in (finding.first, finding.second) if side]
        key = finding.kind, finding.array, *sorted(sides, key=str)
        kept, places = self.found.setdefault(key, (finding, set()))
        places.add(where)
        kept.count = len(places)

    @property
    def counts(self):
        """The counts of all blocks together."""
        return sum((counts for _, _, counts in self.blocks), Counts())

    @property
    def findings(self):
        """All findings. A read that races with the write that came too late is not called uninitialised as well."""
        racing = {(f.array, side.file, side.line) for f, _ in self.found.values() if f.kind == "race"
                  for side in (f.first, f.second)}
        return [f for f, _ in self.found.values()
                if f.kind != "uninitialised" or (f.array, f.first.file, f.first.line) not in racing]

    def of_kind(self, kind):
        return [f for f in self.findings if f.kind == kind]

    @property
    def races(self):
        return self.of_kind("race")

    @property
    def divergences(self):
        return self.of_kind("divergence")

    @property
    def uninitialised(self):
        return self.of_kind("uninitialised")

    @property
    def ok(self):
        return not self.findings

    def table(self):
        """Counts and findings as text."""
        counts = self.counts
        lines = [f"{field.name.replace('_', ' '):>14}  {getattr(counts, field.name):>10,}" for field in fields(counts)]
        return "\n".join([*lines, "", *(str(finding) for finding in self.findings or ["nothing found"])])

    __str__ = table
