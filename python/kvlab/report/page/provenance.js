// The program and the inputs of each result, and how far its times can be trusted.

function facts(rows) {
  const shown = rows.filter((row) => row[1]).map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value)));
  return el("table", { class: "facts" }, el("tbody", {}, ...shown));
}

function list(texts) {
  return el("ul", {}, ...texts.map((text) => el("li", {}, text)));
}

function fold(title, ...children) {
  return el("details", {}, el("summary", {}, title), ...children);
}

function axesText(run) {
  return Object.entries(run.axes || {}).map(([axis, value]) => `${axis}=${value}`).join(" ");
}

function stepTimes(parts) {
  const percent = (share) => short(Math.round(1000 * share) / 10) + " %";
  return Object.entries(parts || {}).map(([part, bases]) => {
    const all = Object.values(bases).reduce((sum, share) => sum + share, 0);
    return `${part} ${percent(all)} (${Object.keys(bases).join(", ")})`;
  }).join(", ");
}

function runTable(result) {
  if (!result.runs.length) return null;
  const profile = (run) => (run.profile ? [run.profile.name, run.profile.hash, run.profile.date].filter(Boolean).join(" ") : "");
  const texts = {
    run: (run) => run.run, axes: axesText, seed: (run) => String(run.seed ?? ""), state: (run) => run.state || "",
    credibility: (run) => run.credibility || "", "step time": (run) => stepTimes(run.step_time_by_part), profile,
    model: (run) => run.model || "", hardware: (run) => run.hardware || "", "input key": (run) => run.input_key || "",
  };
  const used = Object.entries(texts).filter(([, text]) => result.runs.some((run) => text(run) !== ""));
  const columns = used.map(([title, text]) => ({ title, value: text, text }));
  const place = el("div", {});
  new DataTable(place, columns, result.runs, { pageSize: 50 });
  return fold(`${result.runs.length} runs: state, credibility, profile, inputs`, place);
}

function provenanceOf(result) {
  const m = result.manifest, inputs = Object.entries(m.inputs || {}).map(([file, hash]) => `${file}  ${hash}`);
  const rows = [
    ["program", m.program], ["code", m.code], ["experiment", m.experiment], ["file", m.file],
    ["command", result.command && el("code", {}, result.command)],
    ["seeds", (m.seeds || []).join(", ")], ["axes", (m.axes || []).join(", ")], ["host", m.host && `${m.host.name}, ${m.host.cores} cores`],
    ["finished", m.finished], ["took", m.wall_s && short(m.wall_s) + " s"], ["inputs and their hashes", inputs.length ? list(inputs) : ""],
  ];
  const resolved = result.resolved ? fold("resolved.yaml: running it again gives the same results", el("pre", {}, result.resolved)) : null;
  return el("div", { class: "card", id: "provenance-" + result.number }, facts(rows), runTable(result), resolved);
}

function credibilitySection() {
  const some = DATA.results.filter((result) => result.credibility.length || result.remarks.length);
  if (!some.length) return;
  const made = section("credibility", "Credibility");
  const runs = (remark) => (remark.runs.length === 1 ? `run ${remark.runs[0]}` : `${remark.runs.length} runs from ${remark.runs[0]}`);
  for (const result of some) {
    const title = DATA.results.length > 1 ? el("div", { class: "title" }, result.name) : null;
    const remarks = result.remarks.map((remark) => `${remark.kind} (${runs(remark)}): ${remark.text}`);
    made.append(el("div", { class: "card" }, title, list([...result.credibility, ...remarks])));
  }
}

function provenanceSection() {
  const made = section("provenance", "Provenance");
  for (const result of DATA.results) {
    if (DATA.results.length > 1) made.append(el("h3", {}, result.name));
    made.append(provenanceOf(result));
  }
}
