// A tool: its form, and a call as it happens. The server answers with an event stream, a question with the next one.
"use strict";

{
  const { words, element, fill } = mcpConsole;
  const form = document.getElementById("call");
  const [status, progress, log, question, result, exchange] = ["status", "progress", "log", "question", "result", "exchange"].map(
    (id) => document.getElementById(id),
  );
  const run = form.querySelector('[type="submit"]');
  const cancel = form.querySelector("[data-cancel]");
  const raw = document.getElementById("raw");
  const rawError = document.getElementById("raw-error");
  let running = null; // the AbortController of the call

  const say = (text) => status.replaceChildren(text);

  const show = (id, text) => (document.querySelector(`#panel-${id} code`).textContent = text);

  const handlers = {
    request(data) {
      exchange.hidden = false;
      show("request", data.json);
      show("response", "");
      for (const id of ["curl", "python"]) {
        document.getElementById(`tab-${id}`).hidden = !data[id];
        show(id, data[id] ?? "");
      }
    },
    progress(data) {
      const bar = progress.querySelector("progress");
      progress.hidden = false;
      if (data.total) {
        bar.max = data.total;
        bar.value = data.done;
      } else {
        bar.removeAttribute("value");
      }
      const steps = data.total ? `${data.done} / ${data.total}` : `${data.done}`;
      progress.querySelector("span").textContent = `${steps} ${data.message}`;
    },
    log(data) {
      log.hidden = false;
      const line = element("li", { className: data.level }, element("span", { className: "level", text: data.level }), ` ${data.text}`);
      log.querySelector("ol").append(line);
    },
    question(data) {
      say(words.waiting);
      show("response", data.json);
      ask(data.html);
    },
    // In the middle of a call, whose stream goes on after the answer.
    asked(data) {
      say(words.waiting);
      ask(data.html, reply);
    },
    result(data) {
      question.replaceChildren();
      say(data.isError ? words.failed : words.done);
      progress.hidden = progress.hidden || !data.isError;
      show("response", data.json.length > 200000 ? `${data.json.slice(0, 200000)}\n…` : data.json);
      document.querySelector("#panel-response [data-copy-block]").dataset.copy = data.json;
      result.innerHTML = data.html; // made by the server's templates; the CSP lets no script in it run
      const json = JSON.parse(data.json);
      fill(result, json);
      result.dispatchEvent(new CustomEvent("mcp-result", { bubbles: true, detail: json.result }));
    },
  };

  function ask(html, answer = (data) => send(data, (refusal) => ask(refusal.form))) {
    question.innerHTML = html;
    const asked = question.querySelector("form");
    asked.addEventListener("submit", (event) => {
      event.preventDefault();
      answer(new FormData(asked, event.submitter));
    });
    document.dispatchEvent(new Event("change")); // the form library looks at fields that are new
    (asked.querySelector("input:not([type=hidden]), select, textarea") ?? asked.querySelector("button")).focus();
  }

  async function reply(data) {
    question.replaceChildren(); // now: the next question may come before the response
    say(words.running);
    try {
      const response = await fetch(form.action, { method: "POST", body: data });
      const refusal = response.ok ? await response.json() : { error: words.forbidden };
      if (refusal.form) ask(refusal.form, reply);
      else if (refusal.error) say(refusal.error);
    } catch {
      say(words.lost);
    }
  }

  async function send(data, refused) {
    running = new AbortController();
    const { signal } = running;
    run.disabled = true;
    cancel.hidden = false;
    say(words.running);
    try {
      const answer = await fetch(form.action, { method: "POST", body: data, signal });
      if (!answer.ok) {
        say(words.forbidden);
      } else if (answer.headers.get("Content-Type").startsWith("application/json")) {
        say(words.refused);
        refused(await answer.json());
      } else {
        question.replaceChildren();
        await read(answer);
      }
    } catch (error) {
      say(signal.aborted ? words.cancelled : words.lost);
      question.replaceChildren();
      if (!signal.aborted) console.warn(error);
    } finally {
      running = null;
      run.disabled = false;
      cancel.hidden = true;
    }
  }

  async function read(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = [];
    let ended = false;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = value.split("\n\n");
      pending.push(parts.shift());
      for (const part of parts) {
        ended = handle(pending.join("")) || ended;
        pending = [part];
      }
    }
    if (!ended) say(words.lost);
  }

  function handle(block) {
    const lines = block.split("\n");
    const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
    if (!name) return false; // a comment that keeps the connection open
    handlers[name](JSON.parse(lines.find((line) => line.startsWith("data: ")).slice(6)));
    return name === "result" || name === "question";
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const place of [question, result, log.querySelector("ol")]) place.replaceChildren();
    progress.hidden = log.hidden = true;
    rawError.hidden = true;
    send(new FormData(form), (answer) => {
      if (answer.form) {
        document.getElementById("fields").innerHTML = answer.form;
        document.dispatchEvent(new Event("change"));
        document.querySelector("#fields .has-error :is(input:not([type=hidden]), select, textarea)")?.focus();
      } else {
        rawError.textContent = answer.error;
        rawError.hidden = false;
        raw.focus();
      }
    });
  });

  cancel.addEventListener("click", () => running?.abort());

  form.querySelector("[data-switch-mode]").addEventListener("click", (event) => {
    const toJSON = form.elements.mode.value === "form";
    form.elements.mode.value = toJSON ? "json" : "form";
    for (const part of form.querySelectorAll("[data-mode]")) part.hidden = part.dataset.mode !== form.elements.mode.value;
    event.target.setAttribute("aria-pressed", toJSON);
    event.target.textContent = toJSON ? words.editAsForm : words.editAsJSON;
  });

  // Ctrl+Enter runs from anywhere in the form.
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !run.disabled) form.requestSubmit(run);
  });
}
