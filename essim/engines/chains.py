"""What an op list is to the fast engine: chains, and blocks of them that repeat.

Ops that follow one another and that nobody else waits for are one chain: their durations add up.
A model's layers are alike, so its chains repeat. Both leave every end as it is, to the last
picosecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from essim.engines.graph import Graph
from essim.step.ops import MAIN_STREAM, Op

# Blocks of chains longer than this are not looked for.
_MOST_CHAINS_A_BLOCK = 16


@dataclass(frozen=True)
class Chain:
    """Ops that run one right after another; only the end of the last matters to others.

    Attributes
    ----------
    sources
        Positions in the list of chains of what it follows within the step.
    carried
        Ops of the previous step, by position in the op list, that it follows and would not anyway.
    sum
        Position of its duration in `Plan.sums`.
    """

    sources: tuple[int, ...]
    carried: tuple[int, ...]
    sum: int


@dataclass(frozen=True)
class Plan:
    """An op list as chains.

    Attributes
    ----------
    sums
        Each chain's duration as (position of a row of durations, how often) pairs.
    of_op
        Which chain ends with an op that is kept.
    carriers
        Ops whose end can reach into the next step: all that chains have in `carried`.
    latest
        Those of them that no other ends after.
    entries
        Chains that follow an op of the previous step and none that does so itself: before them, a
        step knows nothing of the previous one.
    first, period, blocks
        From chain `first` on, `blocks` blocks of `period` chains are alike; no blocks where
        nothing repeats.
    """

    graph: Graph
    chains: tuple[Chain, ...]
    sums: tuple[tuple[tuple[int, int], ...], ...]
    of_op: dict[int, int]
    carriers: tuple[int, ...]
    latest: tuple[int, ...]
    entries: tuple[int, ...]
    first: int
    period: int
    blocks: int


@lru_cache(maxsize=256)
def plan_of(ops: tuple[Op, ...], rows: tuple[int, ...], keep: frozenset[int]) -> Plan:
    """Return the plan of an op list.

    Parameters
    ----------
    rows
        For each op, the position of its row of durations; ops that share one have the same.
    keep
        Positions of ops whose ends are wanted.
    """
    graph = Graph.of(ops)
    ancestors = _ancestors(graph, len(ops))
    carried = _carried(ops, graph, ancestors)
    carriers = tuple(sorted({j for previous in carried.values() for j in previous}))
    kept = {*keep, *carriers, graph.last_main}
    members, sources, of_op = _chained(graph, ancestors, carried, kept)
    counts = [tuple(sorted(Counter(rows[i] for i in chain).items())) for chain in members]
    sums = tuple(dict.fromkeys(counts))
    position = {one: i for i, one in enumerate(sums)}
    chains = tuple(
        Chain(follows, carried.get(own[0], ()), position[count])
        for follows, own, count in zip(sources, members, counts, strict=True)
    )
    before = 0
    for i in carriers:
        before |= ancestors[i]
    latest = tuple(i for i in carriers if not before >> i & 1)
    bits = sum(1 << i for i in carried)
    entries = tuple(of_op[i] for i in carried if not ancestors[i] & bits)
    ends = {i: of_op[i] for i in kept}
    return Plan(graph, chains, sums, ends, carriers, latest, entries, *_repeating(chains))


def _carried(
    ops: Sequence[Op], graph: Graph, ancestors: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Return what ops follow of the previous step, but for what they follow anyway.

    That is what ends before the step begins, what another one of these ends after, and what an
    earlier op of the step follows already.
    """
    past = ancestors[graph.last_main] | 1 << graph.last_main
    found: dict[int, tuple[int, ...]] = {}
    through: dict[int, int] = {}
    for i, op in enumerate(ops):
        previous = list(graph.waits_previous[i])
        if graph.before[i] is None and op.stream not in (None, MAIN_STREAM):
            previous.append(graph.last_of_stream[str(op.stream)])
        if not previous:
            continue
        anyway = past
        for j in previous:
            anyway |= ancestors[j]
        for earlier, passed in through.items():
            if ancestors[i] >> earlier & 1:
                anyway |= passed
        left = tuple(sorted({j for j in previous if not anyway >> j & 1}))
        if left:
            found[i] = left
            through[i] = reduce(or_, (ancestors[j] | 1 << j for j in left))
    return found


def _ancestors(graph: Graph, count: int) -> list[int]:
    """Return what each op follows at any distance within the step, a bit an op."""
    ancestors: list[int] = []
    for i in range(count):
        found = 0
        for j in graph.sources(i):
            found |= ancestors[j] | 1 << j
        ancestors.append(found)
    return ancestors


def _sources(graph: Graph, ancestors: Sequence[int], i: int) -> list[int]:
    """Return what an op follows, without what it follows through another one anyway."""
    sources, through = set(graph.sources(i)), 0
    for j in sources:
        through |= ancestors[j]
    return sorted(j for j in sources if not through >> j & 1)


def _chained(
    graph: Graph,
    ancestors: Sequence[int],
    carried: Mapping[int, tuple[int, ...]],
    keep: set[int],
) -> tuple[list[list[int]], list[tuple[int, ...]], dict[int, int]]:
    """Return each chain's ops, the chains that it follows, and the chain of each op."""
    all_sources = [_sources(graph, ancestors, i) for i in range(len(ancestors))]
    users = Counter(j for sources in all_sources for j in sources)
    members: list[list[int]] = []
    follows: list[tuple[int, ...]] = []
    of_op: dict[int, int] = {}
    for i, sources in enumerate(all_sources):
        alone = len(sources) == 1 and i not in carried
        if alone and users[sources[0]] == 1 and sources[0] not in keep:
            of_op[i] = of_op[sources[0]]
            members[of_op[i]].append(i)
        else:
            of_op[i] = len(members)
            members.append([i])
            follows.append(tuple(of_op[j] for j in sources))
    return members, follows, of_op


def _repeating(chains: Sequence[Chain]) -> tuple[int, int, int]:
    """Return (first, period, blocks) of the longest stretch of blocks that are alike."""
    # What is carried into some blocks makes them no longer alike.
    looks = [
        (c.sum, tuple(i - j for j in c.sources)) if not c.carried else (-1 - i, ())
        for i, c in enumerate(chains)
    ]
    best = (0, 1, 0)
    for period in range(1, _MOST_CHAINS_A_BLOCK + 1):
        first = 0
        for i in range(len(looks)):
            same = i + period < len(looks) and looks[i] == looks[i + period]
            # A block may follow no further back than the block before it.
            if same and all(back <= period for back in looks[i][1]):
                continue
            blocks = (i - first) // period + 1
            if blocks > 3 and (blocks - 1) * period > best[1] * (best[2] - 1):
                best = (first, period, blocks)
            first = i + 1
    return best
