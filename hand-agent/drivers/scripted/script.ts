/**
 * What a scripted driver is told to do wrong, as JSON: `{"rules": [{"on": "provision", "does": {"fail": "no disk"}}]}`.
 * The text is asked for anew at every operation, so that a test changes it under a running agent. The first rule that
 * fits an operation counts; without one the operation simply happens.
 */
import { readFileSync } from "node:fs";
import { messageOf } from "../../../kit/errors.ts";

export const OPERATIONS = [
  "probe",
  "provision",
  "recover",
  "exec",
  /** The output of a call, as tools read it. */
  "output",
  "readFile",
  "writeFile",
  "park",
  /** Of a hand, also by its id alone. */
  "destroy",
] as const;
export type Operation = (typeof OPERATIONS)[number];

export interface Effect {
  /** First waits so long. */
  readonly delayMs?: number;
  /** Never ends, unless its caller gives up. */
  readonly hang?: true;
  /** Fails as a driver does that knows why; probe says not available. */
  readonly fail?: string;
  /** Fails as a driver does that has a bug. */
  readonly bug?: string;
  /** Only recover: the workspace is gone. */
  readonly gone?: true;
  /** Only park and destroy: they happen, and say that so many processes did not end. */
  readonly left?: number;
  /** Only exec and output: after so many bytes the sandbox ends under its processes. */
  readonly endAtByte?: number;
  /** Only output: so many bytes come before the call's own. */
  readonly flood?: number;
}

export interface Rule {
  readonly on: Operation;
  /** Only for this hand. */
  readonly hand?: string;
  /** Only where the argument holds this text: argv of exec, the call of output, the path of a file. */
  readonly with?: string;
  /** So many matches pass first. Default 0. */
  readonly after?: number;
  /** For so many matches. Default: always. */
  readonly times?: number;
  readonly does: Effect;
}

const RULE_FIELDS = new Set(["on", "hand", "with", "after", "times", "does"]);
const EFFECTS = new Set(["delayMs", "hang", "fail", "bug", "gone", "left", "endAtByte", "flood"]);

export class Script {
  private readonly read: () => string;
  private readonly seen = new Map<string, number>();

  constructor(read: () => string) {
    this.read = read;
  }

  /** The script in a file; without the file nothing goes wrong. */
  static ofFile(path: string): Script {
    return new Script(() => {
      try {
        return readFileSync(path, "utf8");
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === "ENOENT") return "";
        throw error;
      }
    });
  }

  /** What is to go wrong with this operation. Throws an Error for a text that is no script. */
  effectOn(on: Operation, hand: string, argument = ""): Effect {
    for (const rule of parseRules(this.read())) {
      if (rule.on !== on || (rule.hand ?? hand) !== hand || !argument.includes(rule.with ?? "")) continue;
      const key = JSON.stringify(rule);
      const seen = this.seen.get(key) ?? 0;
      this.seen.set(key, seen + 1);
      const after = rule.after ?? 0;
      if (seen >= after && seen < after + (rule.times ?? Number.POSITIVE_INFINITY)) return rule.does;
    }
    return {};
  }
}

function parseRules(text: string): readonly Rule[] {
  if (text.trim() === "") return [];
  try {
    const { rules } = JSON.parse(text) as { rules: Rule[] };
    rules.forEach(checkRule);
    return rules;
  } catch (error) {
    throw new Error(`the script of the scripted driver cannot be used: ${messageOf(error)}`);
  }
}

/** A typing error in a test's script must not pass for "nothing goes wrong". */
function checkRule(rule: Rule, index: number): void {
  const unknown = [
    ...Object.keys(rule).filter((field) => !RULE_FIELDS.has(field)),
    ...Object.keys(rule.does ?? {}).filter((effect) => !EFFECTS.has(effect)),
  ];
  if (unknown.length > 0) throw new Error(`rules[${index}] has unknown ${unknown.join(", ")}`);
  if (!OPERATIONS.includes(rule.on))
    throw new Error(`rules[${index}].on must be one of ${OPERATIONS.join(", ")}`);
  if (typeof rule.does !== "object") throw new Error(`rules[${index}].does is missing`);
}
