"""A page in a real browser, and what can be asked of it: complaints, accessibility, labels, focus, pictures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OVERLAPS = """() => [...document.querySelectorAll('svg.plot')].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  const labels = [...svg.querySelectorAll('text')].map((node) => [node.textContent, node.getBoundingClientRect()])
    .filter(([, box]) => box.width && box.height);
  const found = [];
  labels.forEach(([text, a], at) => {
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
      found.push(`outside: ${text}`);
    for (const [other, b] of labels.slice(at + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 4) found.push(`${text} over ${other}`);
    }
  });
  return found;
})"""
FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  return {tag: at.tagName, text: (at.getAttribute('aria-label') || at.textContent || at.id).trim().slice(0, 60),
          outline: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0,
          visible: at.getClientRects().length > 0};
}"""


@dataclass
class Looked:
    """An open page. complaints: what it wrote to the console as an error, errors that no one caught, requests that
    failed or left for somewhere else.
    """

    context: Any
    page: Any
    address: str
    folder: Path
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: Any, address: str, scheme: str, width: int, folder: Path) -> "Looked":
        """Open an address and wait until it shows something."""
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        looked = cls(context, context.new_page(), address, folder)
        home = address.split("#", maxsplit=1)[0].rsplit("/", 1)[0]
        page = looked.page
        page.on("console", lambda said: looked._complain(said.type in ("error", "warning"), f"console: {said.text}"))
        page.on("pageerror", lambda error: looked._complain(True, f"error: {error}"))
        page.on("request", lambda request: looked._complain(
            not request.url.startswith((home, "data:")), f"request to {request.url}"))
        page.on("response", lambda answer: looked._complain(answer.status >= 400, f"{answer.status} {answer.url}"))
        page.goto(address)
        looked.settled()
        return looked

    def settled(self) -> None:
        """Wait for a view of the site to be there; a report is there at once."""
        if self.address.startswith("http"):
            self.page.wait_for_selector("main[aria-busy=false]")

    def _complain(self, wrong: bool, what: str) -> None:
        if wrong:
            self.complaints.append(what)

    def picture(self, name: str) -> Path:
        """A screenshot of the whole page, kept as an artefact."""
        path = self.folder / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        assert path.stat().st_size > 5000
        return path

    def serious(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response
        assert found["passes"], "axe-core looked at nothing"
        return [f"{item['id']}: {item['help']}: {[node['target'] for node in item['nodes']][:3]}"
                for item in found["violations"] if item["impact"] in ("serious", "critical")]

    def overlaps(self) -> list[str]:
        """Labels in pictures that lie over another or outside."""
        found: list[str] = self.page.evaluate(OVERLAPS)
        return found

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        wider: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return wider

    def injected(self) -> bool:
        """Whether words of a receipt were carried out."""
        return bool(self.page.evaluate("'injected' in window || document.querySelector('img') !== null"))

    def focus(self) -> dict[str, Any]:
        """What has the focus, and whether one can see that."""
        at: dict[str, Any] = self.page.evaluate(FOCUS)
        return at

    def tab_to(self, wanted: Callable[[dict[str, Any]], bool], most: int = 80) -> dict[str, Any]:
        """Press Tab until what is wanted has the focus; everything on the way must show that it has it."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            at = self.focus()
            if at["tag"] == "BODY":
                continue
            assert at["visible"], at
            assert at["outline"], at
            if wanted(at):
                return at
        raise AssertionError("Tab never led there")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds. The pages forbid `eval`, so it is asked for again each frame."""
        self.page.evaluate(f"() => new Promise((done) => {{ const look = () => (({condition}) ? done() : "
                           "requestAnimationFrame(look)); look(); })")

    def close(self) -> None:
        """Close it."""
        self.context.close()
