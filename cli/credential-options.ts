/** What a credential is for, and its secret, from options, files and standard input. Secrets never stand in arguments. */
import { create, fromJsonString } from "@bufbuild/protobuf";
import type { Command } from "commander";
import { StartupError } from "../kit/program.ts";
import {
  type CredentialUse,
  CredentialUseSchema,
  type PlainSecret,
  PlainSecretSchema,
} from "../proto/gen/tendon/v1/vault_service_pb.js";
import { EXIT_USAGE } from "./command.ts";
import { readText } from "./read-file.ts";
import { parseList, parseRepeated } from "./words.ts";

export interface UseOptions {
  bearer?: string;
  header?: string;
  headerName?: string;
  oauth?: string;
  tokenEndpoint?: string;
  clientId?: string;
  clientAuth?: string;
  scope?: string;
  resource?: string;
  variable?: string;
  host?: string[];
  in?: string[];
  git?: string;
  pushBranch?: string[];
}

export interface SecretOptions {
  secretFile?: string;
  secretJson?: string;
  user?: string;
}

export function addUseOptions(command: Command): Command {
  return command
    .option("--bearer <url>", "Authorization: Bearer towards this MCP server")
    .option("--header <url>", "a header towards this MCP server; needs --header-name")
    .option("--header-name <name>", "such as X-Api-Key")
    .option("--oauth <url>", "OAuth 2 towards this MCP server")
    .option("--token-endpoint <url>", "where OAuth tokens are refreshed")
    .option("--client-id <id>", "OAuth client")
    .option("--client-auth <way>", "none, client_secret_basic or client_secret_post")
    .option("--scope <scope>", "OAuth scope to ask for")
    .option("--resource <url>", "OAuth resource to ask for")
    .option("--variable <name>", "a variable that sandboxes see as a placeholder; needs --host")
    .option(
      "--host <name>",
      "host on which the variable is put in; may be given several times",
      parseRepeated,
    )
    .option("--in <places>", "where the variable is put in: headers,body", parseList)
    .option("--git <url>", "https://host or https://host/owner/repository")
    .option(
      "--push-branch <glob>",
      "branch that may be pushed to; may be given several times",
      parseRepeated,
    );
}

export function addSecretOptions(command: Command): Command {
  return command
    .option("--secret-file <file>", 'file with the secret; "-", or left out: standard input')
    .option(
      "--secret-json <file>",
      'file with a JSON object: value, refresh_token, client_secret, user_name, expires_at; "-": standard input',
    )
    .option("--user <name>", "git user name");
}

/** Undefined when no option says anything. Throws a StartupError for several kinds at once. */
export function useOf(options: UseOptions): CredentialUse | undefined {
  const kinds = kindsOf(options);
  const [kind] = kinds;
  if (kinds.length > 1) throw new StartupError(`one of ${KIND_OPTIONS} is enough`, EXIT_USAGE);
  return kind && create(CredentialUseSchema, { kind });
}

export const KIND_OPTIONS = "--bearer, --header, --oauth, --variable, --git";

function kindsOf(options: UseOptions) {
  const { bearer, header, headerName = "", oauth, variable, host = [], git, pushBranch = [] } = options;
  const places = options.in ?? ["headers", "body"];
  const unknown = places.find((place) => place !== "headers" && place !== "body");
  if (unknown !== undefined)
    throw new StartupError(`--in knows headers and body, not ${unknown}`, EXIT_USAGE);
  const { tokenEndpoint = "", clientId = "", clientAuth = "", scope = "", resource = "" } = options;
  const oauthUse = { serverUrl: oauth ?? "", tokenEndpoint, clientId, clientAuth, scope, resource };
  if (header !== undefined && headerName === "")
    throw new StartupError("--header needs --header-name, such as X-Api-Key", EXIT_USAGE);
  const inThese = { inHeaders: places.includes("headers"), inBody: places.includes("body") };
  return [
    ...(bearer === undefined ? [] : [{ case: "staticBearer" as const, value: { serverUrl: bearer } }]),
    ...(header === undefined ? [] : [{ case: "header" as const, value: { serverUrl: header, headerName } }]),
    ...(oauth === undefined ? [] : [{ case: "oauth" as const, value: oauthUse }]),
    ...(variable === undefined
      ? []
      : [
          { case: "environmentVariable" as const, value: { name: variable, allowedHosts: host, ...inThese } },
        ]),
    ...(git === undefined ? [] : [{ case: "git" as const, value: { url: git, pushBranches: pushBranch } }]),
  ];
}

/** Throws a StartupError that repeats nothing of what it read. */
export function readSecret({ secretFile, secretJson, user = "" }: SecretOptions): PlainSecret {
  if (secretFile !== undefined && secretJson !== undefined) {
    throw new StartupError("--secret-file and --secret-json exclude each other", EXIT_USAGE);
  }
  const file = secretJson ?? secretFile ?? "-";
  if (file === "-" && process.stdin.isTTY) {
    throw new StartupError(
      "the secret is read from standard input: pipe it in, or name a file with --secret-file",
      EXIT_USAGE,
    );
  }
  const text = readText(file);
  if (secretJson === undefined) {
    const value = text.replace(/\r?\n$/, "");
    if (value === "") throw new StartupError("the secret is empty", EXIT_USAGE);
    return create(PlainSecretSchema, { value, userName: user });
  }
  try {
    const secret = fromJsonString(PlainSecretSchema, text);
    return create(PlainSecretSchema, { ...secret, userName: user || secret.userName });
  } catch {
    // What the parser says could repeat the secret.
    throw new StartupError(`${file} is no JSON object with the fields of a secret`, EXIT_USAGE);
  }
}
