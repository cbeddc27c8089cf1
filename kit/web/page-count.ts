/** How many pages a document has, as its `context` says it to models, and to whoever guesses what it costs (pure). */

export function pageCountText(pages: number): string {
  return pages === 1 ? "1 page" : `${pages} pages`;
}

/** Undefined where the text says something else. */
export function pageCountOf(text: string): number | undefined {
  const said = /^([1-9]\d{0,6}) pages?$/.exec(text)?.[1];
  return said === undefined ? undefined : Number(said);
}
