// Of every page: copying, tabs, filtering lists, completion, JSON trees. No framework, no build step.
"use strict";

const words = JSON.parse(document.getElementById("console-words").textContent);

const mcpConsole = {
  words,

  element(tag, { className = "", text = null, ...attributes } = {}, ...children) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  },

  // The value at "result.content.0.text" in a JSON document.
  at(document_, pointer) {
    return pointer.split(".").reduce((value, key) => value?.[key], document_);
  },

  // A tree whose branches are made when they are opened: a large result costs nothing before.
  tree(value, key = null, open = true) {
    const { element } = mcpConsole;
    const label = key === null ? [] : [element("span", { className: "key", text: key }), ": "];
    if (value === null || typeof value !== "object") {
      const kind = value === null ? "null" : typeof value;
      return element("div", { className: "leaf" }, ...label, element("span", { className: kind, text: JSON.stringify(value) }));
    }
    const entries = Object.entries(value);
    const isList = Array.isArray(value);
    const count = `${isList ? "[" : "{"}${entries.length} ${isList ? words.items : words.keys}${isList ? "]" : "}"}`;
    const branch = element("details", {}, element("summary", {}, ...label, element("span", { className: "count", text: count })));
    let shown = 0;
    const showMore = () => {
      const next = entries.slice(shown, (shown += 200));
      branch.append(...next.map(([name, each]) => mcpConsole.tree(each, name, open && entries.length <= 20)));
      if (shown < entries.length) {
        const more = element("button", { type: "button", className: "button small", text: words.more });
        more.addEventListener("click", () => (more.remove(), showMore()));
        branch.append(more);
      }
    };
    branch.addEventListener("toggle", () => branch.open && shown === 0 && showMore());
    if (open) {
      showMore();
      branch.open = true;
    }
    return branch;
  },

  // What the server could not put into a fragment: trees, and the rest of long texts.
  fill(root, json) {
    for (const place of root.querySelectorAll("[data-tree]")) {
      place.replaceChildren(mcpConsole.tree(mcpConsole.at(json, place.dataset.tree)));
    }
    for (const place of root.querySelectorAll("[data-tree-text]")) {
      place.replaceChildren(mcpConsole.tree(JSON.parse(mcpConsole.at(json, place.dataset.treeText))));
    }
    for (const button of root.querySelectorAll("[data-whole]")) {
      button.addEventListener("click", () => {
        button.closest(".part").querySelector("pre code").textContent = mcpConsole.at(json, button.dataset.whole);
        button.closest("p").remove();
      });
    }
  },
};
globalThis.mcpConsole = mcpConsole;

// Copying

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-block]");
  if (!button) return;
  const text = button.dataset.copy ?? button.closest(".code-block").querySelector("code").textContent;
  await navigator.clipboard.writeText(text).catch(() => {
    const area = mcpConsole.element("textarea", { className: "visually-hidden" }); // without TLS
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  });
  const label = button.getAttribute("aria-label");
  button.classList.add("done");
  button.setAttribute("aria-label", words.copied);
  setTimeout(() => {
    button.classList.remove("done");
    button.setAttribute("aria-label", label);
  }, 1500);
});

// Tabs: arrows move, as in the ARIA pattern

for (const list of document.querySelectorAll('[role="tablist"]')) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  const select = (tab) => {
    for (const each of tabs) {
      const isSelected = each === tab;
      each.setAttribute("aria-selected", isSelected);
      each.tabIndex = isSelected ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !isSelected;
    }
  };
  list.addEventListener("click", (event) => event.target.closest('[role="tab"]') && select(event.target.closest('[role="tab"]')));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    select(next);
    next.focus();
  });
}

// Filtering a list

document.querySelector("[data-filter]")?.addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  const rows = [...document.querySelectorAll("[data-filtered] > li")];
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  document.querySelector("[data-nothing]").hidden = rows.some((row) => !row.hidden);
});

// Completion, for resource templates and prompts

for (const form of document.querySelectorAll("[data-completes]")) {
  const inputs = [...form.querySelectorAll("[data-argument]")];
  for (const input of inputs) {
    let latest = 0;
    const suggest = async () => {
      const asked = ++latest;
      const url = new URL(form.dataset.completes, location);
      url.searchParams.set("argument", input.dataset.argument);
      url.searchParams.set("value", input.value);
      for (const other of inputs) {
        if (other !== input && other.value) url.searchParams.set(`known-${other.dataset.argument}`, other.value);
      }
      const answer = await fetch(url).catch(() => null);
      if (!answer?.ok || asked !== latest) return;
      const { values } = await answer.json();
      input.list.replaceChildren(...values.map((value) => mcpConsole.element("option", { value })));
    };
    input.addEventListener("focus", suggest);
    input.addEventListener("input", suggest);
  }
}

const response = document.getElementById("response-json");
if (response) mcpConsole.fill(document, JSON.parse(response.textContent));
