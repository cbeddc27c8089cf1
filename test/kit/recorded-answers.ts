/**
 * What a client of the HTTP API was answered, held against the types that the client itself declares for its calls. The
 * compiler judges: a field that has to be there and is not, or is of another type, is a problem; further fields are none.
 */
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import type Anthropic from "@anthropic-ai/sdk";

interface Answer {
  /** As in a program: `beta.agents.create`. */
  readonly call: string;
  readonly value: unknown;
  /** One entry of a page. */
  readonly isEntry: boolean;
}

export class RecordedAnswers {
  private readonly answers: Answer[] = [];

  /** The client, with every answer noted. Lists are awaited, one page at a time. */
  recording(client: Anthropic): Anthropic["beta"] {
    return this.wrap(client.beta, "beta");
  }

  /** What the compiler finds wrong, for the clients in these folders of `node_modules`; each with its call. */
  async problems(packageNames: readonly string[]): Promise<string[]> {
    const folder = await mkdtemp(join(tmpdir(), "tendon-answers-"));
    try {
      const files = packageNames.map((_, at) => `answers${at}.ts`);
      for (const [at, name] of packageNames.entries())
        await writeFile(join(folder, files[at]!), [...headOf(name), ...this.answers.map(lineOf)].join("\n"));
      await writeFile(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, files }));
      return (await compile(folder)).map(({ file, line, text }) => {
        const call = this.answers[line - headOf("").length - 1]?.call ?? "the program itself";
        return `${packageNames[file] ?? ""} ${call}: ${text}`;
      });
    } finally {
      await rm(folder, { recursive: true });
    }
  }

  private wrap<T extends object>(of: T, path: string): T {
    return new Proxy(of, {
      get: (target, name) => {
        const value = Reflect.get(target, name) as unknown;
        const call = `${path}.${String(name)}`;
        if (typeof value === "function") {
          return async (...args: unknown[]) => {
            const answer = (await value.apply(target, args)) as unknown;
            this.note(call, answer);
            return answer;
          };
        }
        const isResource = typeof value === "object" && value !== null && !String(name).startsWith("_");
        return isResource ? this.wrap(value, call) : value;
      },
    });
  }

  private note(call: string, answer: unknown): void {
    const page = answer as { data?: unknown; next_page?: unknown };
    if (!Array.isArray(page.data) || page.next_page === undefined)
      this.answers.push({ call, value: answer, isEntry: false });
    else for (const value of page.data) this.answers.push({ call, value, isEntry: true });
  }
}

const compilerOptions = {
  noEmit: true,
  strict: true,
  skipLibCheck: true,
  target: "es2022",
  module: "nodenext",
  types: [],
};

function headOf(packageName: string): string[] {
  return [
    `import type Client from ${JSON.stringify(resolve("node_modules", packageName, "index.js"))};`,
    "type Answer<Call> = Call extends (...args: never[]) => infer Promised ? Awaited<Promised> : never;",
    "type Entry<Call> = Answer<Call> extends { data: (infer One)[] } ? One : never;",
    // A type that is inferred may have more than what it extends.
    "const fits = <Wanted>() => <Value extends Wanted>(_value: Value) => {};",
  ];
}

function lineOf({ call, value, isEntry }: Answer): string {
  const type = `Client${call
    .split(".")
    .map((name) => `["${name}"]`)
    .join("")}`;
  return `fits<${isEntry ? "Entry" : "Answer"}<${type}>>()(${JSON.stringify(value, asTyped)});`;
}

/** Null by the client's own comments, and not by its types. */
const NULL_IN_COMMENTS = new Set(["created_by", "redacted_by"]);

function asTyped(name: string, value: unknown): unknown {
  return value === null && NULL_IN_COMMENTS.has(name) ? undefined : value;
}

interface Finding {
  readonly file: number;
  readonly line: number;
  text: string;
}

async function compile(folder: string): Promise<Finding[]> {
  const tsc = resolve("node_modules/.bin/tsc");
  const output = await new Promise<string>((done) => {
    execFile(tsc, ["-p", folder, "--pretty", "false"], (_error, stdout, stderr) => done(stdout + stderr));
  });
  const findings: Finding[] = [];
  for (const text of output.split("\n")) {
    const [, file, line, problem] = /answers(\d)\.ts\((\d+),\d+\): (.*)$/.exec(text) ?? [];
    if (problem !== undefined) findings.push({ file: Number(file), line: Number(line), text: problem });
    else if (findings.length > 0 && text.startsWith(" ")) findings.at(-1)!.text += `\n${text}`;
    else if (text.trim() !== "") findings.push({ file: -1, line: 0, text });
  }
  return findings;
}
