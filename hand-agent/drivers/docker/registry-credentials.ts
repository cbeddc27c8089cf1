/**
 * Credentials of registries that images are pulled from: an operator's file on the agent's machine, in the form of Docker's
 * `config.json`. It is read for each pull, so that what is changed there counts at once; nothing of it goes to the server,
 * into a hand, a log, an error or an argument.
 */
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { type Clock, within } from "../../../kit/clock.ts";
import { HandError } from "../driver.ts";

export interface RegistryAuthOptions {
  /** Empty: no registry asks for anything. */
  readonly file: string;
  /** For credential helpers: the only variables that they get. */
  readonly helperEnv: Readonly<Record<string, string>>;
}

/** As the engine takes it. */
export type RegistryAuth =
  | { readonly username: string; readonly password: string; readonly serveraddress: string }
  | { readonly identitytoken: string; readonly serveraddress: string };

const HUB = "index.docker.io";
/** What helpers and files call Docker's own registry. */
const HUB_KEY = `https://${HUB}/v1/`;
const HELPER_WITHIN_MS = 20_000;
const MAX_ANSWER_BYTES = 64 * 1024;
const HELPER_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
/** A helper's word for a user whose secret is an identity token. */
const TOKEN_USER = "<token>";

export class RegistryCredentials {
  private readonly options: RegistryAuthOptions;
  private readonly clock: Clock;

  constructor(options: RegistryAuthOptions, clock: Clock) {
    this.options = options;
    this.clock = clock;
  }

  /** For the registry of an image; undefined when there are none. Rejects with HandError, with the file's path alone. */
  async forImage(image: string): Promise<RegistryAuth | undefined> {
    const { file } = this.options;
    if (file === "") return undefined;
    const host = registryOf(image);
    const config = await this.read(file);
    const helper = entryFor(config.credHelpers, host) ?? config.credsStore;
    const asked =
      typeof helper === "string" && helper !== "" ? await this.askHelper(helper, host) : undefined;
    return asked ?? inFile(entryFor(config.auths, host), host);
  }

  private async read(file: string): Promise<Config> {
    try {
      const config: unknown = JSON.parse(await readFile(file, "utf8"));
      if (typeof config === "object" && config !== null) return config as Config;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      // The text of a JSON error would quote the file.
      throw new HandError(
        `the file of registry credentials ${file} ${code === undefined ? "is not valid JSON" : `cannot be read (${code})`}`,
      );
    }
    throw new HandError(`the file of registry credentials ${file} holds no JSON object`);
  }

  /** Undefined when the helper has none for that registry. */
  private async askHelper(helper: string, host: string): Promise<RegistryAuth | undefined> {
    if (!HELPER_NAME.test(helper)) throw new HandError("a credential helper has a name that is none");
    const program = `docker-credential-${helper}`;
    const answer = run(program, this.options.helperEnv, keyOf(host));
    const tooLate = () => new HandError(`${program} did not answer within ${HELPER_WITHIN_MS / 1000} s`);
    const { code, text } = await within(this.clock, HELPER_WITHIN_MS, answer.result, tooLate).finally(
      answer.kill,
    );
    if (code !== 0) {
      if (/not found/i.test(text)) return undefined;
      throw new HandError(`${program} could not give the credentials of ${host} (exit ${code})`);
    }
    try {
      const { Username: username, Secret: secret } = JSON.parse(text) as Record<string, unknown>;
      if (typeof username === "string" && typeof secret === "string") return authOf(username, secret, host);
    } catch {
      // Not quoted: it may hold the secret.
    }
    throw new HandError(`${program} gave an answer that is none`);
  }
}

interface Config {
  readonly auths?: unknown;
  readonly credHelpers?: unknown;
  readonly credsStore?: unknown;
}

/** The host, with its port, that a reference to an image names. */
export function registryOf(image: string): string {
  const [first = "", ...rest] = image.split("/");
  const isHost = rest.length > 0 && (/[.:]/.test(first) || first === "localhost");
  return !isHost || first === "docker.io" ? HUB : first;
}

function keyOf(host: string): string {
  return host === HUB ? HUB_KEY : host;
}

/** Keys are hosts, also as URLs of old. */
function entryFor(table: unknown, host: string): unknown {
  if (typeof table !== "object" || table === null) return undefined;
  const hostOfKey = (key: string) => key.replace(/^https?:\/\//, "").split("/")[0];
  const isWanted = (key: string) =>
    hostOfKey(key) === host || (host === HUB && hostOfKey(key) === "docker.io");
  return Object.entries(table).find(([key]) => isWanted(key))?.[1];
}

function inFile(entry: unknown, host: string): RegistryAuth | undefined {
  if (typeof entry !== "object" || entry === null) return undefined;
  const { auth, username, password, identitytoken } = entry as Record<string, unknown>;
  if (typeof identitytoken === "string" && identitytoken !== "")
    return authOf(TOKEN_USER, identitytoken, host);
  if (typeof username === "string" && typeof password === "string") return authOf(username, password, host);
  if (typeof auth !== "string" || auth === "") return undefined;
  const [user = "", ...secret] = Buffer.from(auth, "base64").toString().replace(/\0+$/, "").split(":");
  return authOf(user, secret.join(":"), host);
}

function authOf(username: string, secret: string, host: string): RegistryAuth {
  const serveraddress = keyOf(host);
  return username === TOKEN_USER
    ? { identitytoken: secret, serveraddress }
    : { username, password: secret, serveraddress };
}

function run(program: string, env: Readonly<Record<string, string>>, input: string) {
  const child = spawn(program, ["get"], { stdio: ["pipe", "pipe", "ignore"], env });
  const result = new Promise<{ code: number | null; text: string }>((resolve, reject) => {
    let text = "";
    child.stdout.setEncoding("utf8").on("data", (piece: string) => {
      text = (text + piece).slice(0, MAX_ANSWER_BYTES);
    });
    child.stdin.on("error", () => {});
    child.on("error", (error: NodeJS.ErrnoException) =>
      reject(new HandError(`${program} could not be started (${error.code ?? "failed"})`)),
    );
    child.on("close", (code) => resolve({ code, text }));
  });
  result.catch(() => {});
  child.stdin.end(input);
  return { result, kill: () => void child.kill("SIGKILL") };
}
