/** What a server's tool answered, in the blocks that results are made of, within their bounds. */
import { capText, type ImageBlock, MAX_TEXT_CHARS, type TextBlock, type ToolResult } from "../../result.ts";

/** Of an image, before it is written as base64. Above it would not fit beside others into what models take. */
const MAX_IMAGE_BYTES = 1024 * 1024;
const MAX_IMAGES = 16;
const MAX_BLOCKS = 256;
/** What models see. */
const IMAGE_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

export function resultOfAnswer(answer: Readonly<Record<string, unknown>>): ToolResult {
  const given = Array.isArray(answer.content) ? answer.content : [];
  let images = 0;
  const blocks = given.slice(0, MAX_BLOCKS).map((entry) => {
    const block = blockOf(entry);
    if (block.type !== "image") return block;
    images += 1;
    return images > MAX_IMAGES ? note(`an image more than the ${MAX_IMAGES} that a result may hold`) : block;
  });
  if (given.length > MAX_BLOCKS) blocks.push(note(`${given.length - MAX_BLOCKS} more blocks of content`));
  // Servers that answer by a schema say the same as text, or should; these do not.
  if (given.length === 0 && answer.structuredContent !== undefined) {
    blocks.push(text(JSON.stringify(answer.structuredContent)));
  }
  if (blocks.length === 0) blocks.push(text("(no output)"));
  return { isError: answer.isError === true, outcome: "completed", content: capped(blocks), artefacts: [] };
}

type Block = TextBlock | ImageBlock;

/** Texts that are too long together become one, cut in its middle as outputs are. */
function capped(blocks: readonly Block[]): Block[] {
  const texts = blocks.filter((block) => block.type === "text").map((block) => block.text);
  if (texts.reduce((sum, each) => sum + each.length, 0) <= MAX_TEXT_CHARS) return [...blocks];
  const whole = capText(texts.join("\n"), undefined);
  return [text(whole), ...blocks.filter((block) => block.type !== "text")];
}

function blockOf(entry: unknown): Block {
  const block = (entry ?? {}) as Record<string, unknown>;
  switch (block.type) {
    case "text":
      return text(String(block.text ?? ""));
    case "image":
      return media(block.data, block.mimeType);
    case "audio":
      return note(`${String(block.mimeType ?? "audio").slice(0, 100)}, ${bytesOf(block.data)} bytes`);
    case "resource_link":
      return text(`[resource ${String(block.uri ?? "")}${block.name ? `: ${String(block.name)}` : ""}]`);
    case "resource":
      return resource(block.resource);
    default:
      return note(`a block of the type ${JSON.stringify(block.type ?? null).slice(0, 100)}`);
  }
}

function resource(value: unknown): Block {
  const { uri, mimeType, text: content, blob } = (value ?? {}) as Record<string, unknown>;
  if (typeof content === "string") return text(`[resource ${String(uri ?? "")}]\n${content}`);
  return media(blob, mimeType);
}

function media(data: unknown, mimeType: unknown): Block {
  const type = String(mimeType ?? "");
  const bytes = bytesOf(data);
  if (typeof data !== "string" || !IMAGE_TYPES.has(type) || bytes > MAX_IMAGE_BYTES || !isBase64(data)) {
    return note(`${type.slice(0, 100) || "data"}, ${bytes} bytes`);
  }
  return { type: "image", source: { type: "base64", media_type: type, data } };
}

function bytesOf(data: unknown): number {
  if (typeof data !== "string") return 0;
  const padding = data.endsWith("==") ? 2 : data.endsWith("=") ? 1 : 0;
  return Math.floor((data.length * 3) / 4) - padding;
}

function isBase64(data: string): boolean {
  return data.length > 0 && data.length % 4 === 0 && /^[A-Za-z0-9+/]+={0,2}$/.test(data);
}

/** Something that is not passed on; the model is told, and what it was. */
function note(what: string): TextBlock {
  return text(`[left out: ${what}]`);
}

function text(value: string): TextBlock {
  // No model takes an empty block.
  return { type: "text", text: value === "" ? "(empty)" : value };
}
