"""Random life of both pools against a model that knows every byte, with the audit after each step."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from memory_cases import make_images, make_pages

from ninfer_engine.memory.audit import audit, check
from ninfer_engine.memory.errors import AuditError, OutOfHostError, OutOfPagesError, OutOfSlotsError
from ninfer_engine.memory.images import ImageId
from ninfer_engine.memory.packing import Part
from ninfer_engine.memory.pages import PageId

PAGES, HOST_PAGES, SLOTS, HOST_SLOTS = 12, 5, 4, 2


class Pools(RuleBasedStateMachine):
    """Holders are lists of ids; `contents` is what each page and image must hold."""

    page_sets: Bundle[list[PageId]] = Bundle("page_sets")
    image_ids: Bundle[ImageId] = Bundle("image_ids")

    def __init__(self) -> None:
        super().__init__()
        self.pages = make_pages(PAGES, HOST_PAGES)
        self.images = make_images(SLOTS, HOST_SLOTS, layers=1)
        self.held_pages: Counter[PageId] = Counter()
        self.held_images: Counter[ImageId] = Counter()
        self.working: list[int] = []
        self.page_contents: dict[PageId, bytes] = {}
        self.image_contents: dict[ImageId, bytes] = {}
        self.stamp = 0

    def fresh(self, size: int) -> bytes:
        self.stamp += 1
        return (self.stamp.to_bytes(4, "little") * (size // 4 + 1))[:size]

    def keep(self, pages: list[PageId]) -> list[PageId]:
        for page in pages:
            self.page_contents[page] = self.fresh(self.pages.page_bytes)
            self.pages.import_(page, self.page_contents[page])
        self.held_pages.update(pages)
        return pages

    @rule(target=page_sets, count=st.integers(1, 6), room=st.integers(0, 4), after=st.integers(0, 40))
    def allocate(self, count: int, room: int, after: int) -> list[PageId]:
        try:
            return self.keep(self.pages.allocate(count, PageId(after), room))
        except OutOfPagesError:
            assert self.pages.free_device < count
            return []

    @rule(target=page_sets)
    def allocate_on_host(self) -> list[PageId]:
        try:
            return self.keep(self.pages.allocate_host(1))
        except OutOfHostError:
            return []

    @rule(target=page_sets, pages=page_sets)
    def share(self, pages: list[PageId]) -> list[PageId]:
        self.pages.retain(pages)
        self.held_pages.update(pages)
        return list(pages)

    @rule(pages=consumes(page_sets))
    def release(self, pages: list[PageId]) -> None:
        self.pages.release(pages)
        self.held_pages -= Counter(pages)
        for page in pages:
            if not self.held_pages[page]:
                self.page_contents.pop(page, None)

    @rule(pages=page_sets)
    def demote(self, pages: list[PageId]) -> None:
        before = self.pages.account()
        try:
            self.pages.demote(pages)
        except OutOfHostError:
            assert self.pages.account() == before

    @rule(pages=page_sets)
    def promote(self, pages: list[PageId]) -> None:
        before = self.pages.account()
        try:
            self.pages.promote(pages)
        except OutOfPagesError:
            assert self.pages.account() == before

    @rule(pages=page_sets)
    def drop_host_copies(self, pages: list[PageId]) -> None:
        self.pages.drop_host([page for page in pages if self.pages.residency(page).device is not None])

    @rule(pages=page_sets)
    def gather(self, pages: list[PageId]) -> None:
        self.pages.make_contiguous([page for page in pages if self.pages.residency(page).device is not None])

    @rule()
    def start_sequence(self) -> None:
        try:
            self.working.append(self.images.acquire_slot())
        except OutOfSlotsError:
            assert self.images.free_device == 0

    @precondition(lambda self: self.working)
    @rule()
    def end_sequence(self) -> None:
        self.images.release_slot(self.working.pop(0))

    @precondition(lambda self: self.working)
    @rule(target=image_ids)
    def adopt(self) -> ImageId:
        image = self.images.adopt(self.working.pop())
        return self.remember(image)

    @precondition(lambda self: self.working and self.images.free_device)
    @rule(target=image_ids)
    def snapshot(self) -> ImageId:
        return self.remember(self.images.snapshot(self.working[-1]))

    @precondition(lambda self: self.working and self.images.free_host)
    @rule(target=image_ids)
    def snapshot_to_host(self) -> ImageId:
        return self.remember(self.images.snapshot(self.working[-1], tier="host"))

    def remember(self, image: ImageId) -> ImageId:
        self.image_contents[image] = self.fresh(self.images.image_bytes)
        self.images.import_(image, self.image_contents[image])
        self.held_images[image] += 1
        return image

    @rule(image=image_ids)
    def move_image(self, image: ImageId) -> None:
        if not self.held_images[image]:
            return
        try:
            if self.images.residency(image).device is None:
                self.images.promote(image)
            else:
                self.images.demote(image)
        except (OutOfSlotsError, OutOfHostError):
            pass

    @rule(image=consumes(image_ids))
    def release_image(self, image: ImageId) -> None:
        self.images.release([image])
        self.held_images -= Counter([image])
        del self.image_contents[image]

    @invariant()
    def accounts_balance(self) -> None:
        check(self.pages, self.images, self.held_pages, self.held_images, self.working)

    @invariant()
    def no_byte_is_wrong(self) -> None:
        for page, content in self.page_contents.items():
            assert bytes(self.pages.export(page)) == _masked(self.pages.layout.parts, content)
        for image, content in self.image_contents.items():
            assert bytes(self.images.export(image)) == _masked(self.images.layout.parts, content)


def _masked(parts: tuple[Part, ...], content: bytes) -> bytes:
    """`content` with the gaps between parts zero, as every pool keeps them."""
    masked = bytearray(len(content))
    for part in parts:
        masked[part.offset:part.offset + part.size] = content[part.offset:part.offset + part.size]
    return bytes(masked)


Pools.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_random_life_of_the_pools = Pools.TestCase


def test_the_audit_names_what_is_lost_doubled_or_unheld() -> None:
    pages, images = make_pages(4, 2), make_images(3, 1)
    held, slot = pages.allocate(2), images.acquire_slot()
    assert audit(pages, images, dict.fromkeys(held, 1), {}, [slot]) == []
    assert "holders have 0" in audit(pages, images, {held[0]: 1}, {}, [slot])[0]
    assert "counts 1 references, holders have 2" in audit(pages, images, {held[0]: 2, held[1]: 1}, {}, [slot])[0]
    assert "working slots are" in audit(pages, images, dict.fromkeys(held, 1), {}, [])[0]
    pages._runs.place(1, None, 0)  # a page that leaves the free list and goes nowhere
    try:
        check(pages, images, dict.fromkeys(held, 1), {}, [slot])
    except AuditError as error:
        assert error.findings == ["device pages [2] are lost: neither free nor occupied"]
    else:
        raise AssertionError("a lost page was not found")
