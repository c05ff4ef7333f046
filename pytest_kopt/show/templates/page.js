"use strict";
(async () => {
  const at = (id) => document.getElementById(id);
  const unpacked = async (id) => {
    const bytes = Uint8Array.from(atob(at(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const made = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const options = (select, entries) =>
    select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));

  const script = made("script", `(() => {${await unpacked("bundle")}})();`);
  document.head.append(script);
  const data = JSON.parse(await unpacked("data"));

  // Charts follow the reader's theme, also when it changes while the page is open.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const axis = { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, labelLimit: innerWidth < 600 ? 145 : 440 };
    return {
      background: "transparent",
      view: { stroke: line },
      axis,
      legend: { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, labelLimit: 0, layout: { top: { direction: innerWidth < 600 ? "vertical" : "horizontal" } } },
      rule: { color: ink },
      text: { color: ink },
    };
  };
  const draw = async (id, spec) => {
    const place = at(id);
    if (!place || !spec) return;
    const narrow = innerWidth < 600;
    const fitted = structuredClone(spec);
    for (const part of [fitted, ...(fitted.layer ?? [])]) {
      for (const channel of ["color", "shape"]) {
        const legend = part.encoding?.[channel]?.legend;
        if (innerWidth < 1000 && legend?.columns) legend.columns = narrow ? 1 : 3;
      }
      if (narrow && part.encoding?.color && part.encoding.color.legend === undefined)
        part.encoding.color.legend = { orient: "top" };
    }
    await vegaEmbed(place, fitted, { mode: "vega-lite", actions: false, renderer: "svg", config: theme() });
  };
  let pairSpec = null;
  const drawAll = async () => {
    for (const [id, spec] of Object.entries(data.charts)) if (id !== "pairs") await draw(id, spec);
    if (pairSpec) await draw("pairs", pairSpec);
  };

  const rounds = new Map(data.rounds.map((round) => [String(round.number), round]));
  const showRound = async () => {
    const round = rounds.get(at("round").value);
    const parts = [
      made("p", `${round.decision}: ${round.reason}`),
      made("p", [`${round.level} scope`, round.compare !== "none" && `${round.compare} comparison`, round.engine && `timing method ${round.engine}`, `policy ${round.policy}`].filter(Boolean).join(", "), "quiet"),
    ];
    for (const each of round.attempts.slice(0, -1))
      parts.push(made("p", `attempt ${each.attempt}: ${each.decision}: ${each.reason}`, "quiet"));
    for (const flag of round.flags) parts.push(made("p", `flag: ${flag}`, "flag"));
    if (round.commit) parts.push(made("p", `commit ${round.commit}`, "quiet"));
    if (round.restored.length) parts.push(made("p", `restored ${round.restored.join(", ")}`, "quiet"));
    at("detail").replaceChildren(...parts);
    at("detail").insertAdjacentHTML("beforeend", round.tables.join(""));
    const packed = at(`pairs-${round.number}`);
    pairsOf = packed ? JSON.parse(await unpacked(packed.id)) : {};
    const chosen = at("case").value;
    options(at("case"), Object.keys(pairsOf).map((name) => [name, name]));
    if (chosen in pairsOf) at("case").value = chosen;
    await showPairs();
  };
  let pairsOf = {};
  const showPairs = async () => {
    const found = pairsOf[at("case").value];
    at("pairs-of").hidden = at("pairs").hidden = !found;
    at("no-pairs").hidden = Boolean(found);
    if (!found) return;
    const values = found.flatMap((process, i) =>
      process.map((value, j) => ({
        process: i + 1,
        pair: j + 1,
        first: value & 1 ? "current best first" : "candidate first",
        gain: (value >> 1) / 100,
      })),
    );
    const verdict = [rounds.get(at("round").value).changes[at("case").value]].filter(Boolean);
    pairSpec = { ...data.charts.pairs, data: { name: "table", values }, datasets: { verdict } };
    await draw("pairs", pairSpec);
  };

  // The longest common subsequence of two files' lines, as the classic table over whole numbers.
  const difference = (left, right) => {
    const width = right.length + 1;
    const length = new Uint16Array((left.length + 1) * width);
    for (let i = left.length - 1; i >= 0; i--)
      for (let j = right.length - 1; j >= 0; j--)
        length[i * width + j] =
          left[i] === right[j]
            ? length[(i + 1) * width + j + 1] + 1
            : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    const lines = [];
    let i = 0;
    let j = 0;
    while (i < left.length || j < right.length) {
      if (i < left.length && j < right.length && left[i] === right[j]) {
        lines.push([" ", left[i++]]);
        j++;
      } else if (i < left.length && (j === right.length || length[(i + 1) * width + j] >= length[i * width + j + 1])) {
        lines.push(["-", left[i++]]);
      } else {
        lines.push(["+", right[j++]]);
      }
    }
    return lines;
  };
  const showDiff = (kernels) => {
    const name = at("file").value;
    const text = (id) => kernels.texts[kernels.rounds[at(id).value]?.[name]] ?? "";
    const [left, right] = ["left", "right"].map((id) => text(id).split("\n"));
    const lines = difference(left, right);
    const near = lines.map((_, i) =>
      lines.slice(Math.max(0, i - 3), i + 4).some(([sign]) => sign !== " "),
    );
    const shown = [];
    lines.forEach(([sign, line], i) => {
      if (near[i])
        shown.push(made("span", `${sign} ${line}`, { "+": "plus", "-": "minus" }[sign]));
      else if (i === 0 || near[i - 1]) shown.push(made("span", "⋯", "gap"));
    });
    if (!near.some(Boolean)) shown.splice(0, Infinity, made("span", "no difference", "gap"));
    at("diff").replaceChildren(...shown);
  };

  if (at("round")) {
    const kernels = JSON.parse(await unpacked("kernels"));
    const numbers = Object.keys(kernels.rounds);
    const names = [...new Set(Object.values(kernels.rounds).flatMap(Object.keys))];
    for (const id of ["left", "right"])
      options(at(id), numbers.map((n) => [n, `round ${n}, ${rounds.get(n).decision}`]));
    options(at("file"), names.map((name) => [name, name]));
    at("left").value = numbers[0];
    at("right").value = at("round").value;
    for (const id of ["left", "right", "file"]) at(id).onchange = () => showDiff(kernels);
    at("round").onchange = showRound;
    at("case").onchange = showPairs;
    showDiff(kernels);
    await showRound();
  }
  await drawAll();
  dark.onchange = drawAll;
  document.body.dataset.ready = "yes";
})();
