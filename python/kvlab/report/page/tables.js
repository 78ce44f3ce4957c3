// Sortable tables. A column is {title, hint, number, value: row => to sort by, text: row => to show, exact: row => full text}.

function compareValues(a, b) {
  const noA = a === "" || a === null || Number.isNaN(a), noB = b === "" || b === null || Number.isNaN(b);
  if (noA || noB) return noA - noB;  // those without a value come last in both directions
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sorted(rows, column, down) {
  const empty = (row) => { const v = column.value(row); return v === "" || v === null || Number.isNaN(v); };
  const having = rows.filter((row) => !empty(row)), lacking = rows.filter(empty);
  having.sort((a, b) => (down ? -1 : 1) * compareValues(column.value(a), column.value(b)));
  return [...having, ...lacking];
}

class DataTable {
  // options: pageSize, onRow(row), onPage(rows on the page)
  constructor(place, columns, rows, options) {
    Object.assign(this, { columns, rows, options: options || {}, page: 0, order: null, down: false, chosen: null });
    this.count = el("span", { class: "count" });
    this.before = el("button", { type: "button", onclick: () => this.turn(-1) }, "previous");
    this.after = el("button", { type: "button", onclick: () => this.turn(1) }, "next");
    this.table = el("table", {});
    place.append(el("div", { class: "controls" }, this.count, this.before, this.after), el("div", { class: "scroll" }, this.table));
    this.show(rows);
  }

  show(rows, columns) {
    this.rows = rows;
    if (columns) this.columns = columns;
    this.page = 0;
    this.render();
  }

  turn(by) {
    this.page += by;
    this.render();
  }

  sortBy(column) {
    this.down = this.order === column.title ? !this.down : Boolean(column.number);
    this.order = column.title;
    this.page = 0;
    this.render();
  }

  choose(row) {
    this.chosen = row;
    this.render();
  }

  header() {
    return el("thead", {}, el("tr", {}, ...this.columns.map((column) => {
      const sort = this.order === column.title ? (this.down ? "descending" : "ascending") : "none";
      const act = () => this.sortBy(column);
      const onkeydown = (event) => { if (event.key === "Enter") act(); };
      const title = column.hint || column.title;
      const kind = column.number ? "number" : "";
      return el("th", { class: kind, title, "aria-sort": sort, tabindex: "0", onclick: act, onkeydown }, column.title);
    })));
  }

  row(row) {
    const cells = this.columns.map((column) => {
      const exact = column.exact ? column.exact(row) : "";
      return el("td", { class: column.number ? "number" : "", ...(exact ? { title: exact } : {}) }, column.text(row));
    });
    const pick = this.options.onRow;
    return el("tr", { class: (pick ? "pick" : "") + (this.chosen === row ? " chosen" : ""),
      ...(pick ? { onclick: () => { this.choose(row); pick(row); } } : {}) }, ...cells);
  }

  render() {
    const order = this.columns.find((column) => column.title === this.order);
    const all = order ? sorted(this.rows, order, this.down) : this.rows;
    const size = this.options.pageSize || 100, pages = Math.max(1, Math.ceil(all.length / size));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const shown = all.slice(this.page * size, (this.page + 1) * size);
    this.count.textContent = `${all.length.toLocaleString("en-US")} rows` + (pages > 1 ? `, page ${this.page + 1} of ${pages}` : "");
    this.before.hidden = this.after.hidden = pages === 1;
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page === pages - 1;
    this.table.replaceChildren(this.header(), el("tbody", {}, ...shown.map((row) => this.row(row))));
    if (this.options.onPage) this.options.onPage(shown);
  }
}

// True for the text of a number that a double tells from its neighbours: ids of more than 53 bits are names.
function isNumber(text) {
  const number = Number(text);
  return isFinite(number) && (Math.abs(number) <= Number.MAX_SAFE_INTEGER || !/^-?\d+$/.test(text));
}

// Columns of a CSV table; text of numbers is shortened, and the title has it whole.
function csvColumns(table, places) {
  return places.map((place) => {
    const name = table.columns[place];
    const values = table.rows.map((row) => row[place]).filter((text) => text !== "");
    const number = place > 0 && values.length > 0 && values.every(isNumber);
    return {
      title: name.split(".").pop(), hint: name, number,
      value: (row) => (row[place] === "" ? "" : number ? Number(row[place]) : row[place]),
      text: (row) => (number && row[place] !== "" ? short(Number(row[place])) : row[place]),
      exact: (row) => row[place],
    };
  });
}

// A number is found as a number, other text as a part of the cell in any case.
function holds(cell, word) {
  if (!isNumber(word)) return cell.toLowerCase().includes(word);
  return cell.split(/[^\w.+-]+/).some((part) => part !== "" && Number(part) === Number(word));
}

// Rows that have every word of the text in one of the columns that are searched.
function matching(table, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return table.rows.filter((row) => words.every((word) => table.searched.some((place) => holds(row[place], word))));
}

function csvTable(place, table, id) {
  const every = table.columns.map((_, at) => at);
  const few = csvColumns(table, table.shown), all = table.shown.length < every.length ? csvColumns(table, every) : few;
  const said = { placeholder: "filter by text", "aria-label": "filter by text", title: "of runs, axes and other columns of text" };
  const filter = el("input", { type: "search", id: id + "-filter", ...said, oninput: () => show() });
  const whole = el("input", { type: "checkbox", id: id + "-all", onchange: () => show() });
  place.append(el("div", { class: "controls" }, filter, all === few ? null : el("label", {}, whole, `all ${every.length} columns`)));
  const made = new DataTable(place, few, table.rows, { pageSize: 100 });
  made.table.id = id;
  function show() {
    made.show(matching(table, filter.value), whole.checked ? all : few);
  }
  return made;
}

function failures(result) {
  if (!result.failed.length) return null;
  const title = el("div", { class: "title bad" }, `${result.failed.length} of ${result.runs.length} runs have no result`);
  const heads = ["run", "state", "error"].map((name) => el("th", {}, name));
  const rows = result.failed.map((run) => el("tr", {}, el("td", {}, axesText(run) || run.run), el("td", { class: "bad" }, run.state),
    el("td", { class: "wrapped" }, run.error)));
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
  return el("div", { class: "card", id: "failed-" + result.number }, title, table);
}

function summarySection() {
  const made = section("summary", "Summary");
  for (const result of DATA.results) {
    if (DATA.results.length > 1) made.append(el("h3", {}, result.name));
    const lost = failures(result);
    if (lost) made.append(lost);
    if (!result.summary) continue;
    const card = el("div", { class: "card" });
    made.append(card);
    csvTable(card, result.summary, "summary-" + result.number);
  }
}

function otherTables() {
  if (!DATA.results.some((result) => result.tables.length)) return;
  const made = section("tables", "Other tables");
  DATA.results.forEach((result) => result.tables.forEach((table, at) => {
    const title = el("div", { class: "title" }, DATA.results.length > 1 ? `${result.name}: ${table.name}` : table.name);
    const card = el("div", { class: "card" }, title);
    made.append(card);
    csvTable(card, table, `table-${result.number}-${at}`);
  }));
}
