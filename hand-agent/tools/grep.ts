/** `grep`: lines that match, by ripgrep where the hand has it, else by a search of our own. */
import { FileError, type Hand } from "../drivers/driver.ts";
import { type ToolResult, textResult } from "../result.ts";
import { BoundedMatcher } from "./bounded-matcher.ts";
import { withFileErrors } from "./file-text.ts";
import { MAX_WALK_ENTRIES, SKIPPED_NAMES } from "./glob.ts";
import { requiredPath, requiredString } from "./input.ts";
import { InputError, type Tool, type ToolCall } from "./tool.ts";

const MAX_OUTPUT_BYTES = 102_400;
const MAX_LINE_CHARS = 2_000;
/** Of a line longer than this only the beginning is searched. */
const MAX_SCANNED_LINE_CHARS = 1024 * 1024;
const MAX_COMPLAINT_CHARS = 2_000;

export const grepTool: Tool = {
  definition: {
    name: "grep",
    description:
      "Search file contents for a regular expression. Gives path:line:text. Skips .git and node_modules.",
    inputSchema: {
      type: "object",
      properties: {
        pattern: { type: "string", description: "A regular expression." },
        path: { type: "string", description: "A file or directory; default: the working directory." },
      },
      required: ["pattern"],
    },
  },
  async run(call) {
    const { hand, input, state } = call;
    const pattern = requiredString("grep", input, "pattern");
    if (pattern === "") throw new InputError("grep: pattern is required");
    if (pattern.includes("\0")) throw new InputError("grep: pattern must not hold a NUL character");
    const { given, path } = requiredPath("grep", { path: ".", ...input }, "path", hand);
    return withFileErrors("grep", given, async () => {
      const { path: real } = await hand.stat(path);
      return (await state.hasRipgrep()) ? byRipgrep(call, pattern, real) : bySearch(call, pattern, real);
    });
  },
};

/** Gathers lines up to the bound. */
class Hits {
  isFull = false;
  private readonly lines: string[] = [];
  private bytes = 0;

  add(line: string): void {
    if (this.isFull) return;
    this.bytes += Buffer.byteLength(line) + 1;
    if (this.bytes > MAX_OUTPUT_BYTES) this.isFull = true;
    else this.lines.push(line);
  }

  result(): ToolResult {
    const lines = this.isFull
      ? [...this.lines, `[output truncated at ${MAX_OUTPUT_BYTES} bytes]`]
      : this.lines;
    return textResult(lines.length === 0 ? "no matches" : lines.join("\n"));
  }
}

async function byRipgrep(
  { hand, callId, signal }: ToolCall,
  pattern: string,
  path: string,
): Promise<ToolResult> {
  const skips = [...SKIPPED_NAMES].flatMap((name) => ["--glob", `!**/${name}/**`]);
  const options = ["--line-number", "--with-filename", "--no-heading", "--no-config", "--color=never"];
  const limits = ["--max-columns", `${MAX_LINE_CHARS}`, "--max-columns-preview"];
  const child = await hand.exec(
    { argv: ["rg", ...options, ...limits, ...skips, "--regexp", pattern, "--", path], callId },
    signal,
  );
  const hits = new Hits();
  const complaints = textOf(child.stderr.chunks, MAX_COMPLAINT_CHARS);
  for await (const batch of lineBatches(child.stdout.chunks)) {
    for (const line of batch) hits.add(line);
    if (hits.isFull) break;
  }
  if (hits.isFull) {
    child.stdout.abandon();
    await child.kill();
  }
  const { code } = await child.exit;
  signal.throwIfAborted();
  // 2 also means that some files could not be read; what was found elsewhere still counts.
  const complaint = await complaints;
  if (code !== 0 && code !== 1 && !hits.isFull && /^(regex parse )?error|^rg: error/m.test(complaint)) {
    throw new InputError(`grep: rg failed: ${complaint.trim()}`);
  }
  return hits.result();
}

async function bySearch({ hand, signal }: ToolCall, pattern: string, path: string): Promise<ToolResult> {
  const matcher = new BoundedMatcher("grep", compile(pattern));
  const hits = new Hits();
  let entries = 0;
  const { type } = await hand.stat(path);
  if (type === "file") await searchFile(hand, path, matcher, hits, signal);
  else {
    for await (const entry of hand.walk(path, { skip: SKIPPED_NAMES, signal })) {
      entries += 1;
      if (entries > MAX_WALK_ENTRIES || hits.isFull) break;
      if (entry.type === "file") await searchFile(hand, entry.path, matcher, hits, signal);
    }
  }
  return hits.result();
}

function compile(pattern: string): RegExp {
  try {
    return new RegExp(pattern);
  } catch (error) {
    throw new InputError(`grep: invalid regex: ${(error as Error).message}`);
  }
}

async function searchFile(
  hand: Hand,
  path: string,
  matcher: BoundedMatcher,
  hits: Hits,
  signal: AbortSignal,
): Promise<void> {
  let number = 0;
  try {
    for await (const batch of lineBatches(hand.readFile(path, { signal }))) {
      if (batch.some((line) => line.includes("\0"))) return; // binary
      const texts = batch.map((line) => line.slice(0, MAX_LINE_CHARS));
      const matches = matcher.test(texts);
      texts.forEach((text, i) => {
        if (matches[i]) hits.add(`${path}:${number + i + 1}:${text}`);
      });
      number += texts.length;
      if (hits.isFull) return;
    }
  } catch (error) {
    if (!(error instanceof FileError)) throw error; // gone or unreadable: nothing to find here
  }
}

/** Whole lines, as many at a time as a chunk ends. */
async function* lineBatches(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<string[]> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of chunks) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop() ?? "";
    if (rest.length > MAX_SCANNED_LINE_CHARS) rest = rest.slice(0, MAX_LINE_CHARS);
    if (parts.length > 0) yield parts;
  }
  rest += decoder.decode();
  if (rest !== "") yield [rest];
}

async function textOf(chunks: AsyncIterable<Uint8Array>, maxChars: number): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of chunks) {
    if (text.length < maxChars) text += decoder.decode(chunk, { stream: true });
  }
  return text.slice(0, maxChars);
}
