/**
 * A regular expression that comes from a model may take for ever on some text, and nothing else would run meanwhile.
 * Here it is cut off, and the caller is told.
 */
import { type Context, createContext, Script } from "node:vm";
import { InputError } from "./tool.ts";

/** For one batch of texts; an ordinary expression takes a thousandth of it. */
const BATCH_TIMEOUT_MS = 250;

export class BoundedMatcher {
  private readonly context: Context & { texts: readonly string[] };
  private readonly tool: string;

  constructor(tool: string, expression: RegExp) {
    this.tool = tool;
    const { source, flags } = expression;
    this.context = createContext({ source, flags, texts: [] as readonly string[] }) as typeof this.context;
    new Script("expression = new RegExp(source, flags)").runInContext(this.context);
  }

  /** Which of the texts match. Keep a batch to some hundred kilobytes. */
  test(texts: readonly string[]): boolean[] {
    this.context.texts = texts;
    try {
      return TEST.runInContext(this.context, { timeout: BATCH_TIMEOUT_MS }) as boolean[];
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ERR_SCRIPT_EXECUTION_TIMEOUT") throw error;
      throw new InputError(`${this.tool}: the pattern takes too long to match; use a simpler one`);
    }
  }
}

const TEST = new Script("Array.from(texts, (text) => expression.test(text))");
