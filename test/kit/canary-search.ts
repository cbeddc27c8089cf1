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
  const word = wordOf(secret);
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

/** Names of the canaries that bytes hold, in any of their forms, also as the two-byte text that engines keep in memory. */
export function canariesIn(canaries: readonly Canary[], bytes: Buffer): Set<string> {
  const found = new Set<string>();
  // Each begins alike: where that is not, nothing of them is.
  for (const [form, beginning] of BEGINNINGS) {
    for (let at = bytes.indexOf(beginning); at >= 0; at = bytes.indexOf(beginning, at + 1)) {
      const around = bytes.subarray(at, at + AROUND);
      for (const { name, secret } of canaries) {
        if (textsOf(secret, form).some((text) => around.indexOf(text) === 0)) found.add(name);
      }
    }
  }
  return found;
}

/** More than any form of a canary's word. */
const AROUND = 256;
const MARK = "canary-";

/** How a canary begins in each form; those in base64 by how many bytes precede it. */
const BEGINNINGS: readonly [form: string, bytes: Buffer][] = [
  ["plain", Buffer.from(MARK)],
  ["utf-16", Buffer.from(MARK, "utf16le")],
  ["hex", Buffer.from(Buffer.from(MARK).toString("hex"))],
  ["HEX", Buffer.from(Buffer.from(MARK).toString("hex").toUpperCase())],
  ...[0, 1, 2].map((offset): [string, Buffer] => [
    `base64 ${offset}`,
    Buffer.from(base64Within(MARK, offset, "base64")),
  ]),
];

function textsOf(secret: string, form: string): Buffer[] {
  const word = wordOf(secret);
  if (form === "plain") return [Buffer.from(word)];
  if (form === "utf-16") return [Buffer.from(word, "utf16le")];
  const hex = Buffer.from(word).toString("hex");
  if (form === "hex") return [Buffer.from(hex)];
  if (form === "HEX") return [Buffer.from(hex.toUpperCase())];
  const offset = Number(form.slice(-1));
  return (["base64", "base64url"] as const).map((encoding) =>
    Buffer.from(base64Within(word, offset, encoding)),
  );
}

function wordOf(secret: string): string {
  return /^canary-[0-9a-f]{20}/.exec(secret)?.[0] ?? secret;
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
