// The page from top to bottom.

function head() {
  const place = document.getElementById("head");
  place.append(el("h1", {}, DATA.title));
  for (const result of DATA.results) {
    const m = result.manifest, done = result.runs.length - result.failed.length;
    const runs = result.runs.length ? `${done} of ${result.runs.length} runs done` : "";
    const parts = [DATA.results.length > 1 ? result.name : "", m.program, m.file, runs, m.finished && "finished " + m.finished];
    place.append(el("p", { class: result.failed.length ? "bad" : "" }, parts.filter(Boolean).join(" · ")));
  }
  if (DATA.left_out.length) place.append(el("p", {}, "Not in this page: " + DATA.left_out.join("; ") + "."));
}

head();
whySection();
credibilitySection();
summarySection();
figureSection();
timelineSection();
requestSection();
otherTables();
provenanceSection();
