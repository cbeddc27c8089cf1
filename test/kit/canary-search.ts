/**
 * Secrets that are made to be found: what they may look like where they have leaked to, and a search for all of these forms in
 * files. Whoever searches plants a control in each place, so that a search that looks nowhere does not pass.
 */
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";

export interface Canary {
  /** For people, and the only thing that a failed test shows of it. */
  readonly name: string;
  readonly secret: string;
}

export interface Hit {
  readonly file: string;
  readonly name: string;
  readonly form: string;
}

/** `tail`: characters that encodings write in another way. */
export function newCanary(name: string, tail = "+/~%a"): Canary {
  return { name, secret: `canary-${randomBytes(10).toString("hex")}${tail}` };
}

/** Each form of a secret by its name. Those of the bare word inside find it too where only a part was taken over or escaped. */
export function formsOf(secret: string): [form: string, text: string][] {
  const word = /^canary-[0-9a-f]{20}/.exec(secret)?.[0] ?? secret;
  const hex = Buffer.from(word).toString("hex");
  return [
    ["plain", word],
    ["url-encoded", encodeURIComponent(secret)],
    ["json", JSON.stringify(secret).slice(1, -1)],
    ["hex", hex],
    ["hex", hex.toUpperCase()],
    ...[0, 1, 2].flatMap((offset): [string, string][] => [
      ["base64", base64Within(word, offset, "base64")],
      ["base64url", base64Within(word, offset, "base64url")],
    ]),
  ];
}

/** What stays the same of a word in base64, whatever stands around it, when so many bytes more than a multiple of 3 precede it. */
function base64Within(word: string, offset: number, encoding: "base64" | "base64url"): string {
  const text = Buffer.from("x".repeat(offset) + word).toString(encoding);
  const whole = Math.floor(((offset + word.length) * 8) / 6);
  return text.slice(Math.ceil((offset * 8) / 6), whole);
}

/** Looks through files, and folders with all below. What vanishes meanwhile is left out; anything else unreadable is an error. */
export async function searchFor(canaries: readonly Canary[], paths: readonly string[]): Promise<Hit[]> {
  const known = new Map<string, { name: string; form: string }>();
  for (const { name, secret } of canaries) {
    if (secret.length < 16) throw new Error(`the secret ${name} is too short to be told from anything else`);
    for (const [form, text] of formsOf(secret)) if (!known.has(text)) known.set(text, { name, form });
  }
  const found = await grep([...known.keys()], paths);
  return found.map(({ file, text }) => ({ file, ...known.get(text)! }));
}

/** The patterns go in through the standard input: as arguments they would stand in /proc. */
async function grep(patterns: readonly string[], paths: readonly string[]) {
  const options = ["-r", "-a", "-o", "-H", "-Z", "-F", "-D", "skip", "-f", "-", "--"];
  const child = spawn("grep", [...options, ...paths], { env: { PATH: process.env.PATH, LC_ALL: "C" } });
  let output = "";
  let problems = "";
  child.stdout.setEncoding("latin1").on("data", (text: string) => {
    output += text;
  });
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    problems += text;
  });
  child.stdin.end(patterns.join("\n"));
  await new Promise((resolve, reject) => child.once("close", resolve).once("error", reject));
  const serious = problems
    .split("\n")
    .filter((line) => line !== "" && !line.endsWith("No such file or directory"));
  if (serious.length > 0) throw new Error(`the search did not see everything: ${serious.join("; ")}`);
  return output
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => ({ file: line.split("\0")[0]!, text: line.split("\0")[1]! }));
}
