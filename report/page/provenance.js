// What was run, by which program and from which inputs, and how far to trust its times.

function facts(rows) {
  return el("table", { class: "facts" }, el("tbody", {}, ...rows.filter((row) => row[1]).map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", {}, value)))));
}

function list(texts) {
  return el("ul", {}, ...texts.map((text) => el("li", {}, text)));
}

function fold(title, ...children) {
  return el("details", {}, el("summary", {}, title), ...children);
}

function stepTimes(parts) {
  const percent = (share) => short(Math.round(1000 * share) / 10) + " %";
  return Object.entries(parts || {}).map(([part, bases]) => {
    const all = Object.values(bases).reduce((sum, share) => sum + share, 0);
    return `${part} ${percent(all)} (${Object.keys(bases).join(", ")})`;
  }).join(", ");
}

function runRows(result) {
  const has = (key) => result.runs.some((run) => run[key]);
  const columns = [["run", (run) => run.run], ["axes", (run) => Object.entries(run.axes || {}).map(([axis, value]) => `${axis}=${value}`).join(" ")], ["seed", (run) => (run.seed === undefined ? "" : String(run.seed))],
    ["state", (run) => run.state || ""], ["credibility", (run) => run.credibility || ""], ["step time", (run) => stepTimes(run.step_time_by_part)],
    ["profile", (run) => (run.profile ? [run.profile.name, run.profile.hash, run.profile.date].filter(Boolean).join(" ") : "")], ["model", (run) => run.model || ""], ["hardware", (run) => run.hardware || ""],
    ["input key", (run) => run.input_key || ""]];
  const used = columns.filter(([, text]) => result.runs.some((run) => text(run) !== ""));
  const place = el("div", {});
  new DataTable(place, used.map(([title, text]) => ({ title, value: text, text })), result.runs, { pageSize: 50 });
  return has("run") ? fold(`${result.runs.length} runs: state, credibility, profile, inputs`, place) : null;
}

function provenanceOf(result) {
  const m = result.manifest;
  const inputs = Object.entries(m.inputs || {}).map(([file, hash]) => `${file}  ${hash}`);
  const rows = [["program", m.program], ["code", m.code], ["experiment", m.experiment], ["file", m.file], ["command", result.command && el("code", {}, result.command)],
    ["seeds", (m.seeds || []).join(", ")], ["axes", (m.axes || []).join(", ")], ["host", m.host && `${m.host.name}, ${m.host.cores} cores`], ["finished", m.finished],
    ["took", m.wall_s && short(m.wall_s) + " s"], ["inputs and their hashes", inputs.length ? list(inputs) : ""]];
  return el("div", { class: "card", id: "provenance-" + result.number }, facts(rows), runRows(result), result.resolved ? fold("resolved.yaml: running it again gives the same results", el("pre", {}, result.resolved)) : null);
}

function credibilitySection() {
  const some = DATA.results.filter((result) => result.credibility.length || result.remarks.length);
  if (!some.length) return;
  const made = section("credibility", "Credibility");
  for (const result of some) {
    const runs = (remark) => (remark.runs.length === 1 ? `run ${remark.runs[0]}` : `${remark.runs.length} runs from ${remark.runs[0]}`);
    made.append(el("div", { class: "card" }, DATA.results.length > 1 ? el("div", { class: "title" }, result.name) : null, list([...result.credibility, ...result.remarks.map((remark) => `${remark.kind} (${runs(remark)}): ${remark.text}`)])));
  }
}

function provenanceSection() {
  const made = section("provenance", "Provenance");
  for (const result of DATA.results) {
    if (DATA.results.length > 1) made.append(el("h3", {}, result.name));
    made.append(provenanceOf(result));
  }
}
