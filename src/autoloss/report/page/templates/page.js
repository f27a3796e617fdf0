"use strict";
(() => {
  const main = document.getElementById("main");
  const sorted = new Map();

  const valueOf = (cell) => {
    const text = cell.textContent.trim();
    const number = parseFloat(text.replace(/[\s\u202f#×%]/g, "").replace("−", "-"));
    return /^[#−-]?[\d.]/.test(text) && !Number.isNaN(number) ? number : text;
  };

  const sort = (table, column, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [valueOf(a.cells[column]), valueOf(b.cells[column])];
      const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
      return direction === "ascending" ? order : -order;
    });
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      if (at === column) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
    });
    sorted.set(table.id, [column, direction]);
  };

  const prepare = () => {
    offerCopies();
    for (const table of main.querySelectorAll("table.sortable")) {
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        if (head.classList.contains("trend") || head.querySelector("button")) return;
        // A column that a narrow page leaves out has nothing to press.
        if (getComputedStyle(head).display === "none") return;
        const button = document.createElement("button");
        button.type = "button";
        button.id = `${table.id}-sort-${column}`;
        button.append(...head.childNodes);
        button.addEventListener("click", () => {
          const first = head.classList.contains("number") ? "descending" : "ascending";
          const now = head.getAttribute("aria-sort");
          sort(table, column, now === first ? (first === "ascending" ? "descending" : "ascending") : first);
        });
        head.append(button);
      });
      if (sorted.has(table.id)) sort(table, ...sorted.get(table.id));
    }
  };

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page without the right to the clipboard copies what is selected.
      const held = document.createElement("textarea");
      held.value = text;
      document.body.append(held);
      held.select();
      document.execCommand("copy");
      held.remove();
    }
  };

  const offerCopies = () => {
    for (const code of main.querySelectorAll("code.copied")) {
      if (code.nextElementSibling?.classList.contains("copy")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "copy";
      button.setAttribute("aria-label", `copy ${code.textContent}`);
      button.addEventListener("click", async () => {
        await copy(code.textContent);
        button.textContent = "copied";
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      });
      code.after(button);
    }
  };

  const keyOf = (element) => element.id || (element.hasAttribute("aria-label") ? `@${element.getAttribute("aria-label")}` : "");
  const find = (key) => key.startsWith("@") ? main.querySelector(`[aria-label="${CSS.escape(key.slice(1))}"]`) : document.getElementById(key);

  const renew = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    const focused = main.contains(document.activeElement) ? keyOf(document.activeElement) : "";
    const scrolled = [...main.querySelectorAll(".wide, .display")].map((e) => [keyOf(e), e.scrollLeft]).filter(([, left]) => left);
    const [x, y] = [scrollX, scrollY];
    const open = main.querySelector("details")?.open;
    main.replaceChildren(...fresh.childNodes);
    if (open) main.querySelector("details").open = true;
    prepare();
    for (const [key, left] of scrolled) { const e = key && find(key); if (e) e.scrollLeft = left; }
    const again = focused && find(focused);
    if (again) again.focus({ preventScroll: true });
    scrollTo(x, y);
  };

  prepare();
  matchMedia("(max-width: 34rem)").addEventListener("change", prepare);
  if (!document.documentElement.hasAttribute("data-live")) return;

  let tag = "";
  const look = async () => {
    try {
      const answer = await fetch("main", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.ok) {
        const news = answer.headers.get("ETag");
        const html = await answer.text();
        if (news !== tag) renew(html);
        tag = news;
      }
    } catch {
      // The server is gone; what is shown stays, and the next look may find it again.
    }
    setTimeout(look, document.hidden ? 10000 : 2000);
  };
  look();
})();
