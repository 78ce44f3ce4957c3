// Figures: a card each, with a selector between its states and switches between linear and logarithmic axes.

const FEW_LINES = 6;

function legendOf(traces, wide) {
  if (traces.length < 2) return { showlegend: false };
  if (wide) return { showlegend: true, legend: { x: 1.01, y: 1, font: { size: 11 } } };
  return { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } } };
}

function heightOf(option, wide) {
  const first = option.traces[0] || {};
  const bars = { bar: option.traces.length, heatmap: 1 }[first.type];
  if (bars) return Math.max(first.type === "bar" ? 330 : 210, 110 + 21 * first.y.length * bars);
  if (typeof (first.y || [])[0] === "string") return Math.max(300, 110 + 17 * new Set(option.traces.flatMap((trace) => trace.y)).size);
  return wide ? 430 : 330 + 15 * Math.ceil(option.traces.length / 2);
}

class FigureCard {
  constructor(place, figure, wide) {
    Object.assign(this, { figure, wide, at: 0 });
    this.logs = { x: this.logSwitch("x"), y: this.logSwitch("y") };
    this.plot = el("div", { id: "figure-" + figure.key });
    this.note = el("p", { class: "note" });
    const names = figure.options.map((option, at) => [at, option.name || "all"]);
    const states = choice(figure.select, "select-" + figure.key, names, (value) => this.turn(value));
    states.field.hidden = figure.options.length === 1;
    const controls = el("div", { class: "controls" }, states.field, this.logs.x.field, this.logs.y.field);
    const title = el("div", { class: "title" }, figure.title);
    place.append(el("div", { class: "card" + (wide ? " wide" : "") }, title, controls, this.plot, this.note));
    this.reset();
  }

  logSwitch(which) {
    const box = el("input", { type: "checkbox", onchange: () => this.render() });
    return { box, field: el("label", {}, box, "log " + which) };
  }

  turn(value) {
    this.at = Number(value);
    this.reset();
  }

  option() {
    return this.figure.options[this.at];
  }

  reset() {
    for (const which of ["x", "y"]) {
      const type = this.option().layout[which + "axis"].type;
      this.logs[which].box.checked = type === "log";
      this.logs[which].field.hidden = type === "category" || this.option().traces.some((trace) => trace.type === "heatmap");
    }
    this.render();
  }

  render() {
    const option = this.option(), axes = {};
    for (const which of ["x", "y"]) {
      const axis = { ...option.layout[which + "axis"] };
      if (axis.type !== "category") axis.type = this.logs[which].box.checked ? "log" : "linear";
      if (axis.type === "log") {
        delete axis.range;  // it is given in values, and a logarithmic axis takes exponents
        axis.dtick = undefined;
      }
      axes[which + "axis"] = { automargin: true, ...axis };
    }
    const more = { shapes: option.layout.shapes, height: heightOf(option, this.wide), barmode: "group" };
    draw(this.plot, option.traces, { ...axes, ...more, ...legendOf(option.traces, this.wide) });
    this.note.textContent = option.note;
  }
}

function figureSection() {
  if (!DATA.figures.length) return;
  const grid = el("div", { class: "grid" });
  section("figures", "Figures", grid);
  const narrow = DATA.figures.filter((figure) => !figure.wide && figure.options.every((option) => option.traces.length <= FEW_LINES));
  if (narrow.length % 2) narrow.shift();  // no hole in the grid
  for (const figure of DATA.figures) new FigureCard(grid, figure, !narrow.includes(figure));
}
