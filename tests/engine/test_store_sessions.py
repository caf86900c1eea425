"""Sessions in the durable store: round trips, sharing, generations, quota, deletes."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import IMAGE_BYTES, SavedSession, open_store, problems, save

from ninfer_engine.memory.store.errors import ObjectMissingError, QuotaError, SessionMissingError
from ninfer_engine.memory.store.saving import PendingObject


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(base=st.integers(1, 300), suffixes=st.lists(st.integers(1, 130), max_size=4),
       page=st.sampled_from([1, 100, 2_000, 70_000]), image=st.sampled_from([1, 300_000, 17_000_000]))
def test_a_session_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, base: int, suffixes: list[int],
                                        page: int, image: int) -> None:
    saved = SavedSession("round", base, page, image)
    for index, suffix in enumerate(suffixes):
        saved.fork(index, suffix)
    directory = tmp_path_factory.mktemp("store")
    store = open_store(directory)
    result = save(store, saved)
    store.close()
    store = open_store(directory)
    assert store.status(saved.session).generation == result.generation == 1
    assert store.load(saved.session).checkpoints == saved.manifest().checkpoints
    assert store.load(saved.session).continuations == saved.manifest().continuations
    assert problems(store, saved.session, saved.contents) == []
    for checkpoint in saved.checkpoints:
        lineage = store.load(saved.session).lineage(checkpoint.number)
        tokens = saved.tokens[checkpoint.number]
        assert lineage.pages == tuple(saved.names.pages(tokens))
        assert b"".join(saved.contents[run] for run in lineage.token_runs) == b"".join(
            token.to_bytes(4, "little") for token in tokens)
    store.close()


def test_a_save_after_a_fork_writes_the_suffix_only(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("template", base=57_853, page_bytes=65_536)
    first = save(store, saved)
    assert first.written_objects == len(saved.contents)
    saved.fork(0, suffix=48)
    second = save(store, saved)
    suffix_pages = len(saved.checkpoints[-1].pages)
    assert suffix_pages <= 2
    assert second.written_bytes <= 1.2 * (suffix_pages * 65_536 + IMAGE_BYTES)
    assert second.generation == 2
    assert problems(store, saved.session, saved.contents) == []


def test_siblings_in_other_sessions_share_the_template_on_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    one = save(store, SavedSession("first", base=6_400, image_bytes=50_000))
    for index in range(15):
        other = SavedSession(f"sibling {index}", base=6_400, image_bytes=50_000)
        other.fork(index, suffix=40)
        save(store, other)
    assert store.used_bytes() < 2 * one.session_bytes
    assert len(store.sessions()) == 16


def test_nothing_new_writes_the_record_alone(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("same")
    save(store, saved)

    def must_not_be_read() -> bytes:
        raise AssertionError("a stored object was read for a save")

    again = store.save(saved.manifest(), {name: PendingObject(1, must_not_be_read) for name in saved.contents})
    assert (again.written_objects, again.generation) == (0, 2)


def test_objects_of_a_dropped_checkpoint_leave_the_disk_with_the_next_save(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("dropped")
    save(store, saved)
    before = store.used_bytes()
    saved.fork(0)
    save(store, saved)
    del saved.checkpoints[-1], saved.continuations[-1], saved.responses[-1]
    save(store, saved)
    assert abs(store.used_bytes() - before) < 500
    assert store.gc().removed_objects == 0


def test_a_save_without_an_object_that_it_needs_changes_nothing(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("lacks")
    with pytest.raises(ObjectMissingError):
        store.save(saved.manifest(), {})
    assert store.sessions() == []
    assert store.used_bytes() == 0


def test_missing_names_what_the_store_lacks(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("missing")
    assert store.missing(saved.contents) == set(saved.contents)
    save(store, saved)
    assert store.missing(saved.contents) == set()


def _sized(text: str, start: int) -> SavedSession:
    saved = SavedSession(text, base=64, image_bytes=1)
    saved.checkpoint(None, tuple(range(start, start + 6_400)))  # 100 pages that no other session has
    return saved


def test_the_quota_reclaims_whole_sessions_in_the_given_order_and_spares_the_living(tmp_path: Path) -> None:
    one = _sized("size", 1_000_000)
    store = open_store(tmp_path / "measure")
    each = save(store, one).session_bytes
    store.close()
    store = open_store(tmp_path / "store", quota=int(3.3 * each))
    sessions = [_sized(f"s{index}", index * 10_000 + 100) for index in range(4)]
    names = [saved.session for saved in sessions]
    for saved in sessions[:3]:
        save(store, saved)
    result = save(store, sessions[3], reclaim=names, live=[names[0]])
    assert result.reclaimed_sessions == (names[1],)
    assert store.sessions() == sorted([names[0], names[2], names[3]])
    assert problems(store, names[0], sessions[0].contents) == []
    assert store.used_bytes() <= store.context.quota_bytes
    assert store.gc().freed_bytes == 0


def test_a_session_that_is_being_read_is_not_reclaimed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "measure")
    each = save(store, _sized("size", 1_000_000)).session_bytes
    store.close()
    store = open_store(tmp_path / "store", quota=int(1.5 * each))
    first, second = _sized("first", 100), _sized("second", 50_000)
    save(store, first)
    with store.reading(first.session), pytest.raises(QuotaError):
        save(store, second, reclaim=[first.session])
    assert save(store, second, reclaim=[first.session]).reclaimed_sessions == (first.session,)


def test_a_save_that_cannot_fit_refuses_early_and_loses_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "measure")
    each = save(store, _sized("size", 1_000_000)).session_bytes
    store.close()
    store = open_store(tmp_path / "store", quota=int(1.2 * each))
    first = _sized("first", 100)
    save(store, first)
    with pytest.raises(QuotaError, match="session-checkpoint-quota-mib"):
        save(store, _sized("too much", 50_000), live=[first.session], reclaim=[first.session])
    grown = _sized("first", 100)
    grown.checkpoint(None, tuple(range(200_000, 206_400)))
    with pytest.raises(QuotaError):
        save(store, grown)
    assert store.status(first.session).generation == 1
    assert problems(store, first.session, first.contents) == []


def test_accounts_survive_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, SavedSession("a"))
    save(store, SavedSession("b", base=5_000))
    before = store.used_bytes()
    store.close()
    store = open_store(tmp_path)
    assert store.used_bytes() == before
    assert store.gc().used_bytes == before


def test_a_deleted_session_is_gone_and_others_keep_what_they_share(tmp_path: Path) -> None:
    store, left, right = open_store(tmp_path), SavedSession("left"), SavedSession("right")
    right.fork(0)
    save(store, left)
    save(store, right)
    assert store.delete(right.session)
    assert not store.delete(right.session)
    assert store.status(right.session).state == "missing"
    with pytest.raises(SessionMissingError):
        store.load(right.session)
    assert problems(store, left.session, left.contents) == []
    store.delete(left.session)
    assert store.used_bytes() == 0
    assert store.gc().removed_pieces == 0


def test_a_deleted_response_stays_deleted_and_its_descendants_stay(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("deletes")
    saved.fork(0)
    save(store, saved)
    store.forget_response(saved.session, "resp_base")
    store.close()
    store = open_store(tmp_path)
    manifest = store.load(saved.session)
    assert [record.response_id for record in manifest.responses] == ["resp_fork_0"]
    assert [item.response_id for item in manifest.continuations] == ["resp_fork_0"]
    assert manifest.deleted_responses == ("resp_base",)
    assert len(manifest.checkpoints) == 2
    save(store, saved)  # a save that began before the delete still carries it
    assert [record.response_id for record in store.load(saved.session).responses] == ["resp_fork_0"]
    assert store.status(saved.session).response_records == 1


def test_reads_and_saves_at_once_never_see_half_a_generation(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("busy", image_bytes=40_000)
    save(store, saved)
    seen: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.extend(problems(store, saved.session, saved.contents))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for index in range(15):
            saved.fork(index, suffix=10)
            save(store, saved)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert seen == []
    assert store.status(saved.session).generation == 16


def test_two_processes_share_a_store(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("two")
    save(store, saved)
    script = ("import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from store_cases import *\n"
              "store = open_store(Path(sys.argv[2])); saved = SavedSession('two'); saved.fork(0); save(store, saved)\n"
              "store.gc(); print(store.status(saved.session).generation)")
    done = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path)],
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"
    assert store.status(saved.session).generation == 2


def test_reading_ahead_keeps_the_order_and_stops_where_an_object_is_missing(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), SavedSession("ahead", base=20_000, page_bytes=3_000)
    save(store, saved)
    digests = list(saved.manifest().objects())
    assert [digest for digest, _ in store.read_many(digests)] == digests
    broken = [*digests[:200], bytes(32), *digests[200:]]
    seen = []
    with pytest.raises(ObjectMissingError):
        for digest, data in store.read_many(broken, ahead_bytes=10_000):
            seen.append(digest)
            assert bytes(data) == saved.contents[digest]
    assert seen == digests[:len(seen)]
    first = next(iter(store.read_many(digests)))  # a reader that leaves early leaves no thread behind
    assert bytes(first[1]) == saved.contents[digests[0]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("store-read")]
