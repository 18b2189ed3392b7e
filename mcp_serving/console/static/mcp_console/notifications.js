// Notifications as they arrive.
"use strict";

{
  const { words, element } = mcpConsole;
  const form = document.getElementById("subscribe");
  const list = document.getElementById("notifications");
  const status = document.getElementById("subscription-status");
  const subscribe = form.querySelector(".primary");
  const stop = form.querySelector("[data-stop]");
  let source = null;

  const say = (text) => status.replaceChildren(text);

  function end(text) {
    source?.close();
    source = null;
    subscribe.disabled = false;
    stop.hidden = true;
    say(text);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const url = new URL(form.action);
    const typed = form.querySelector("[data-uris]").value.split("\n");
    const chosen = new FormData(form).getAll("uri");
    for (const uri of [...chosen, ...typed]) if (uri.trim()) url.searchParams.append("uri", uri.trim());
    subscribe.disabled = true;
    stop.hidden = false;
    source = new EventSource(url);
    source.addEventListener("open", (message) => message.data && say(words.subscribed));
    source.addEventListener("notification", (message) => {
      const told = JSON.parse(message.data);
      const line = element("li", {}, element("span", { className: "muted", text: told.time }), element("code", { text: told.name }));
      if (told.uri) line.append(element("code", { text: told.uri }));
      list.prepend(line);
    });
    source.addEventListener("failed", (message) => end(JSON.parse(message.data).text));
    source.addEventListener("end", () => end(words.ended));
    source.addEventListener("error", (event) => !event.data && source?.readyState === EventSource.CLOSED && end(words.lost));
  });

  stop.addEventListener("click", () => end(words.notSubscribed));
  addEventListener("pagehide", () => source?.close());
}
