/** Puts words onto lines as a page has them: spaces become one, blocks begin lines. Each addition costs what it is long. */

const MAX_INDENT = 8;

export class TextLayout {
  /** In how many elements whose spaces stay. */
  keepsSpaces = 0;
  private readonly parts: string[] = [];
  private chars = 0;
  /** Line breaks that are due before the next word. */
  private breaks = 0;
  private space = false;
  /** What begins the next line. */
  private mark = "";
  private isInRow = false;
  /** Of the open lists the number of their last item; undefined: they are not numbered. */
  private readonly lists: (number | undefined)[] = [];

  get length(): number {
    return this.chars;
  }

  get text(): string {
    return this.parts.join("").trim();
  }

  get isInList(): boolean {
    return this.lists.length > 0;
  }

  add(text: string): void {
    if (this.keepsSpaces > 0) {
      if (text === "") return;
      this.flush();
      this.put(text);
      return;
    }
    const words = text.replace(/\s+/g, " ");
    if (words === " ") this.space = true;
    if (words === " " || words === "") return;
    if (words.startsWith(" ")) this.space = true;
    this.flush();
    this.put(words.trim());
    this.space = words.endsWith(" ");
  }

  /** At least so many line breaks come before the next word. */
  breakLines(count: 1 | 2): void {
    this.breaks = Math.max(this.breaks, count);
    this.space = false;
    this.isInRow = false;
  }

  lineBreak(): void {
    this.breaks = Math.min(2, this.breaks + 1);
    this.space = false;
  }

  /** Stands before the next word, on a line of its own. */
  prefix(mark: string): void {
    this.mark = mark;
  }

  nextCell(): void {
    if (this.isInRow && this.breaks === 0) this.put(" |");
    this.isInRow = true;
    this.space = true;
  }

  beginList(isNumbered: boolean): void {
    this.lists.push(isNumbered ? 0 : undefined);
  }

  endList(): void {
    this.lists.pop();
  }

  beginItem(): void {
    const indent = "  ".repeat(Math.min(MAX_INDENT, Math.max(0, this.lists.length - 1)));
    const last = this.lists.at(-1);
    if (last !== undefined) this.lists[this.lists.length - 1] = last + 1;
    this.mark = `${indent}${last === undefined ? "-" : `${last + 1}.`} `;
  }

  private flush(): void {
    const isFirst = this.parts.length === 0;
    if (this.breaks > 0 && !isFirst) this.put("\n".repeat(this.breaks));
    else if (this.space && !isFirst) this.put(" ");
    if (this.mark !== "") this.put(this.mark);
    this.breaks = 0;
    this.space = false;
    this.mark = "";
  }

  private put(text: string): void {
    this.parts.push(text);
    this.chars += text.length;
  }
}
