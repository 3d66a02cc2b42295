from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from shoal_local.controllers.deployments import Bounds, ReplicaSetCounts, make_bounds, next_sizes


@dataclass
class RolloutSimulation:
    """ReplicaSets whose pods become available on request of the test."""

    bounds: Bounds
    asked: dict[str, int] = field(default_factory=dict)
    available: dict[str, int] = field(default_factory=dict)

    def share(self, name: str) -> ReplicaSetCounts:
        return ReplicaSetCounts(name, self.asked[name], self.available[name], created=name)

    def step(self) -> bool:
        *old, new = sorted(self.asked)
        sizes = next_sizes(self.bounds, self.share(new), [self.share(name) for name in old])
        for name, size in sizes.items():
            self.resize(name, size)
        return bool(sizes)

    def resize(self, name: str, size: int) -> None:
        # The ReplicaSet controller deletes unavailable pods first.
        self.asked[name] = size
        self.available[name] = min(self.available[name], size)

    def total(self) -> int:
        return sum(self.asked.values())


bounds = st.builds(
    make_bounds,
    st.integers(1, 12),
    st.one_of(st.integers(0, 5), st.sampled_from(["0%", "25%", "100%"])),
    st.one_of(st.integers(0, 5), st.sampled_from(["0%", "25%", "100%"])),
)


@given(bounds, st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60))
def test_a_rollout_keeps_its_bounds_whatever_happens_and_whenever_the_template_changes(
    limits: Bounds, events: list[tuple[bool, int]]
) -> None:
    world = RolloutSimulation(limits, {"a": limits.replicas}, {"a": limits.replicas})
    for changed, starting in events:
        if changed:
            name = "a" * (len(world.asked) + 1)
            world.asked[name] = world.available[name] = 0
        before = sum(world.available.values())
        world.step()
        assert world.total() <= max(limits.max_total, limits.replicas)
        assert sum(world.available.values()) >= min(before, limits.min_available)
        for name, asked in world.asked.items():
            world.available[name] = min(asked, world.available[name] + starting)
    assert sum(world.available.values()) >= limits.min_available


@given(bounds, st.integers(1, 4))
def test_a_rollout_whose_pods_come_up_ends_with_the_new_ones_only(limits: Bounds, old: int) -> None:
    world = RolloutSimulation(limits, {"a": limits.replicas}, {"a": limits.replicas})
    for _ in range(old):
        name = "a" * (len(world.asked) + 1)
        world.asked[name] = world.available[name] = 0
        world.step()
    for _ in range(200):
        if not world.step() and world.available == world.asked:
            break
        world.available = dict(world.asked)
    assert world.asked == {**dict.fromkeys(world.asked, 0), max(world.asked): limits.replicas}


def test_pods_that_never_come_up_do_not_cost_the_old_ones() -> None:
    limits = make_bounds(4, 1, 0)
    world = RolloutSimulation(limits, {"a": 4, "aa": 0}, {"a": 4, "aa": 0})
    while world.step():
        pass
    assert world.asked == {"a": 4, "aa": 1}


def test_broken_old_pods_make_room_for_new_ones() -> None:
    limits = make_bounds(4, 0, 1)
    sizes = next_sizes(limits, ReplicaSetCounts("b", 0, 0, "b"), [ReplicaSetCounts("a", 4, 3, "a")])
    assert sizes == {"a": 3}


def test_percentages_round_so_that_a_rollout_can_move() -> None:
    assert make_bounds(3, "25%", "25%") == Bounds(3, 1, 0)
    assert make_bounds(3, "0%", "0%") == Bounds(3, 0, 1)
    assert make_bounds(2, 0, 5) == Bounds(2, 0, 2)


@given(bounds, st.integers(0, 12))
def test_scaling_in_the_midst_of_a_rollout_ends_with_the_new_number(limits: Bounds, replicas: int) -> None:
    world = RolloutSimulation(limits, {"a": limits.replicas, "aa": 0}, {"a": limits.replicas, "aa": 0})
    world.step()
    world.bounds = make_bounds(replicas, limits.max_surge, limits.max_unavailable)
    for _ in range(100):
        world.step()
        world.available = dict(world.asked)
    assert world.asked == {"a": 0, "aa": replicas}


def test_old_pods_that_still_end_take_room() -> None:
    assert (
        next_sizes(make_bounds(2, 0, 2), ReplicaSetCounts("b", 0, 0, "b"), [ReplicaSetCounts("a", 0, 0, "a", pods=2)])
        == {}
    )
