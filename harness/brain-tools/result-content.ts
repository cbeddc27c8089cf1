/** Bounds of what a brain's own tools answer, the same as those of hands for text (pure). */

const MAX_TEXT_CHARS = 100_000;
const HEAD_CHARS = 20_000;
const TAIL_CHARS = 80_000;
/** Of all blocks together, as JSON. */
const MAX_CONTENT_CHARS = 4 * 1024 * 1024;
const MAX_BLOCKS = 100;

export interface BoundedContent {
  readonly content: readonly object[];
  readonly isError: boolean;
}

/** Blocks without text say nothing and are left out, as the model's API refuses them. */
export function boundedContent(blocks: readonly object[], isError: boolean): BoundedContent {
  const content = blocks.flatMap((block) => {
    if (!("text" in block) || typeof block.text !== "string") return [block];
    return block.text.trim() === "" ? [] : [{ ...block, text: boundedText(block.text) }];
  });
  const chars = content.length > MAX_BLOCKS ? 0 : JSON.stringify(content).length;
  if (content.length <= MAX_BLOCKS && chars <= MAX_CONTENT_CHARS) return { content, isError };
  const why =
    content.length > MAX_BLOCKS
      ? `more than ${MAX_BLOCKS} blocks`
      : `more than ${MAX_CONTENT_CHARS} characters`;
  return { content: [{ type: "text", text: `The result has ${why}, so it is not shown.` }], isError: true };
}

function boundedText(text: string): string {
  if (text.length <= MAX_TEXT_CHARS) return text;
  const head = text.slice(0, HEAD_CHARS);
  const tail = text.slice(-TAIL_CHARS);
  const dropped = text.length - HEAD_CHARS - TAIL_CHARS;
  return `${head}\n[… ${dropped} characters are left out here …]\n${tail}`;
}
