// A long table by cursors. All cursors are kept, which is little; of the rows only those of the pages around the viewport.
// The first page is small, so that it appears quickly; scrolling loads larger ones.

const PAGES_KEPT = 8;
export const FIRST_ROWS = 100;
const NEXT_ROWS = 500;

export class Pages {
  /** `load(cursor, limit, signal)` gives `{items, cursor}`; `changed` is called when rows have come or gone. */
  constructor(load, changed, first = null) {
    this._load = load;
    this._changed = changed;
    this._aborter = new AbortController();
    this.first = first;
    this._cursors = [first]; // of the beginning of each page
    this._sizes = []; // rows of each page that was read
    this._rows = new Map(); // page number to rows, of some pages
    this._loading = new Set();
    this.problem = null;
    this.isComplete = false;
  }

  /** Rows that are known to be there. */
  get length() {
    return this._sizes.reduce((sum, size) => sum + size, 0);
  }

  get rowsHeld() {
    return [...this._rows.values()].reduce((sum, rows) => sum + rows.length, 0);
  }

  get isLoading() {
    return this._loading.size > 0;
  }

  close() {
    this._aborter.abort();
  }

  /** The row at a position, or undefined while its page is not in memory. */
  row(position) {
    const [page, first] = this._pageOf(position);
    return this._rows.get(page)?.[position - first];
  }

  cursorOf(position) {
    return this._cursors[this._pageOf(position)[0]] ?? null;
  }

  _pageOf(position) {
    let first = 0;
    for (let page = 0; page < this._sizes.length; page += 1) {
      if (position < first + this._sizes[page]) return [page, first];
      first += this._sizes[page];
    }
    return [this._sizes.length, first];
  }

  /** Have the rows from `first` to `last` in memory, and forget those that are far away. */
  show(first, last) {
    if (this.problem) return;
    const from = this._pageOf(Math.max(0, first))[0];
    const to = this._pageOf(last)[0];
    for (let page = from; page <= to; page += 1) this._want(page);
    const spare = Math.max(0, PAGES_KEPT - (to - from + 1));
    for (const page of this._rows.keys()) if (page < from - spare / 2 || page > to + spare / 2) this._rows.delete(page);
  }

  retry() {
    this.problem = null;
    this._changed();
  }

  async _want(page) {
    const isNext = page === this._sizes.length;
    if (this._rows.has(page) || this._loading.has(page) || (isNext && this.isComplete) || page > this._sizes.length)
      return;
    this._loading.add(page);
    try {
      const { items, cursor } = await this._load(
        this._cursors[page],
        page ? NEXT_ROWS : FIRST_ROWS,
        this._aborter.signal,
      );
      this._rows.set(page, items);
      this._sizes[page] = items.length;
      if (isNext) {
        this._cursors[page + 1] = cursor;
        this.isComplete = !cursor;
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      this.problem = error;
    } finally {
      this._loading.delete(page);
    }
    this._changed();
  }
}
