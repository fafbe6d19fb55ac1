for (const figure of document.querySelectorAll(".hover")) {
  const tooltip = figure.querySelector(".tooltip");
  const show = dot => {
    figure.querySelectorAll(".active").forEach(other => other.classList.remove("active"));
    tooltip.hidden = !dot;
    if (!dot) return;
    const title = dot.querySelector("title");
    if (title) { dot.dataset.text = title.textContent; title.remove(); }
    dot.classList.add("active");
    tooltip.textContent = dot.dataset.text;
    const at = dot.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const left = at.left + at.width / 2 - frame.left, right = left > frame.width / 2;
    tooltip.style.left = right ? "" : left + 14 + "px";
    tooltip.style.right = right ? frame.width - left + 14 + "px" : "";
    tooltip.style.maxWidth = (right ? left : frame.width - left) - 20 + "px";
    tooltip.style.top = Math.max(0, at.bottom - frame.top + 8) + "px";
  };
  const dotOf = event => event.target.closest && event.target.closest(".dot");
  const linked = () => location.hash && figure.querySelector("[id='" + CSS.escape(location.hash.slice(1)) + "']");
  figure.addEventListener("pointerover", event => { if (dotOf(event)) show(dotOf(event)); });
  figure.addEventListener("pointerleave", () => show(linked()));
  figure.addEventListener("focusin", event => show(dotOf(event)));
  figure.addEventListener("click", event => {
    if (!dotOf(event)) return;
    event.preventDefault();  // a jump would move the plot away from the pointer
    history.replaceState(null, "", dotOf(event).getAttribute("href"));
  });
  addEventListener("hashchange", () => show(linked()));
  if (linked()) show(linked());
}
