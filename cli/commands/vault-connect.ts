/** `tendon vault connect`: lets a vault's sessions use an MCP server that somebody has to allow in a browser. */
import { create } from "@bufbuild/protobuf";
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { Command } from "commander";
import { systemClock, within } from "../../kit/clock.ts";
import { StartupError } from "../../kit/program.ts";
import { SEALED_VERSION, sealContent } from "../../kit/vault/sealed-content.ts";
import {
  CredentialSchema,
  type CredentialSecret,
  CredentialSecretSchema,
  CredentialUseSchema,
  type FinishConnectResponse,
  SealedContentSchema,
  type StartConnectResponse,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { CALL_WITHIN, type CommandContext, EXIT_FAILED, EXIT_USAGE, onAction } from "../command.ts";
import { credentialText } from "../credential-text.ts";
import { readText } from "../read-file.ts";
import { openBrowser } from "../vault-connect/browser.ts";
import { readPastedAnswer } from "../vault-connect/pasted-answer.ts";
import type { RedirectAnswer } from "../vault-connect/redirect-answer.ts";
import { listenForRedirect, type RedirectListener } from "../vault-connect/redirect-listener.ts";
import { parseCount, parseDuration, timestampIn, timeText } from "../words.ts";

interface ConnectOptions {
  clientId?: string;
  clientSecretFile?: string;
  clientAuth?: string;
  scope?: string;
  issuer?: string;
  name?: string;
  port?: number;
  timeout?: number;
  /** False with `--no-browser`. */
  browser: boolean;
}

type Context = CommandContext<ConnectOptions>;

/** As long as the server keeps what was begun. */
const MAX_TIMEOUT_MS = 600_000;
const DEFAULT_TIMEOUT_MS = 300_000;
/** The far side may have to be asked several times. */
const START_WITHIN = { deadlineMs: 60_000 } as const;

export function addVaultConnect(vault: Command): void {
  const command = vault
    .command("connect <vault> <url>")
    .description("connect a vault to an MCP server that asks for OAuth: somebody allows it in a browser")
    .option(
      "--client-id <id>",
      "OAuth client that was registered there before; left out: one is registered now",
    )
    .option("--client-secret-file <file>", 'file with that client\'s secret; "-": standard input')
    .option(
      "--client-auth <way>",
      "none, client_secret_basic or client_secret_post; left out: as the server takes it",
    )
    .option("--scope <scope>", "scope to ask for; left out: as the MCP server says")
    .option("--issuer <url>", "authorization server to use, where the MCP server names several")
    .option("--name <name>", "name for people of a new credential")
    .option("--port <port>", "port of the redirect URI; left out: a free one", parseCount(1, 65_535))
    .option(
      "--timeout <time>",
      "how long to wait for the browser, at most 10m; left out: 5m",
      parseDuration(MAX_TIMEOUT_MS),
    )
    .option("--no-browser", "open none here; the address that one was sent back to may be pasted");
  command.addHelpText(
    "after",
    `
A server that is connected already gets new tokens for the credential that it has.

Examples:
  tendon vault connect vlt_01… https://mcp.example.com/mcp
  tendon vault connect vlt_01… https://mcp.example.com/mcp --client-id my-client --client-secret-file - <secret.txt`,
  );
  onAction<ConnectOptions>(command, async (context) => {
    const { args, options, api, output } = context;
    const [vaultId = "", serverUrl = ""] = args.map(String);
    const secret = clientSecretOf(options);
    const listener = await listenForRedirect(options.port ?? 0);
    try {
      const { redirectUri } = listener;
      const { clientId = "", clientAuth = "", scope = "", issuer = "" } = options;
      const request = { vaultId, serverUrl, redirectUri, clientId, clientAuth, scope, issuer };
      const withSecret = secret === undefined ? request : { ...request, clientSecret: secret };
      const started = await api.vaults.startConnect(withSecret, START_WITHIN);
      const answer = await browsed(context, listener, started);
      const finished = await finish(context, vaultId, { serverUrl, answer, started });
      if (finished.replaced) output.note(`The tokens of ${finished.credential!.id} were replaced.`);
      output.message(CredentialSchema, finished.credential!, () => credentialText(finished.credential!));
    } finally {
      await listener.close();
    }
  });
}

/** Throws a StartupError that repeats nothing of what it read. */
function clientSecretOf({ clientSecretFile: file, browser }: ConnectOptions): CredentialSecret | undefined {
  if (file === undefined) return undefined;
  if (file === "-" && !browser)
    throw new StartupError("--no-browser reads standard input: name a file for the secret", EXIT_USAGE);
  const clientSecret = readText(file).replace(/\r?\n$/, "");
  if (clientSecret === "") throw new StartupError("the client's secret is empty", EXIT_USAGE);
  return create(CredentialSecretSchema, { form: { case: "plain", value: { clientSecret } } });
}

/** Shows the URL, and waits for what comes back. */
async function browsed(
  { options, output }: Context,
  listener: RedirectListener,
  { authorizationUrl, state, issuer, clientId, registered, expiresAt }: StartConnectResponse,
): Promise<RedirectAnswer> {
  // It comes from far away, and goes to programs of this machine.
  if (!/^https?:\/\/[!-~]+$/.test(authorizationUrl))
    throw new StartupError("the authorization server's URL is none for a browser", EXIT_FAILED);
  const timeoutMs = options.timeout ?? DEFAULT_TIMEOUT_MS;
  const own = timestampIn(timeoutMs, systemClock.nowMs());
  const until = expiresAt !== undefined && timestampMs(expiresAt) < timestampMs(own) ? expiresAt : own;
  const whose = registered ? "a client that was registered now" : `the client ${clientId}`;
  output.note(
    `${issuer} is asked as ${whose}. Until ${timeText(until)}, allow it in a browser:\n\n${authorizationUrl}\n`,
  );
  const ways = [listener.answerWith(state)];
  let closePasted = () => {};
  if (options.browser) {
    openBrowser(authorizationUrl, () =>
      output.note("No browser was opened here: open the address by yourself."),
    );
  } else {
    output.note(
      `Where the browser cannot reach ${listener.redirectUri}, paste the address that it was sent to:`,
    );
    const refuse = () => output.note("That is not the address that is waited for.");
    const pasted = readPastedAnswer(listener.redirectUri, state, refuse);
    ways.push(pasted.answer);
    closePasted = pasted.close;
  }
  const late = () =>
    new StartupError("the browser was not sent back in time; nothing was stored", EXIT_FAILED);
  try {
    return await within(systemClock, timeoutMs, Promise.race(ways), late);
  } finally {
    closePasted();
  }
}

/** The code is sealed to the proxy here: the server passes on what it cannot read. */
async function finish(
  { api, options }: Context,
  vaultId: string,
  {
    serverUrl,
    answer,
    started,
  }: { serverUrl: string; answer: RedirectAnswer; started: StartConnectResponse },
): Promise<FinishConnectResponse> {
  const { state, iss, error, code } = answer;
  const { connectState } = started;
  const request = { vaultId, connectState, state, iss, error, displayName: options.name ?? "" };
  if (code === "") return api.vaults.finishConnect(request, CALL_WITHIN);
  const [{ vault }, { key }] = await Promise.all([
    api.vaults.getVault({ vaultId }, CALL_WITHIN),
    api.vaults.getSealingKey({}, CALL_WITHIN),
  ]);
  const content = create(SealedContentSchema, {
    version: SEALED_VERSION,
    workspaceId: vault!.workspaceId,
    vaultId,
    use: create(CredentialUseSchema, { kind: { case: "oauth", value: { serverUrl } } }),
    secret: { value: code },
  });
  const sealed = create(CredentialSecretSchema, {
    form: { case: "sealed", value: await sealContent(key!, content) },
  });
  return api.vaults.finishConnect({ ...request, code: sealed }, CALL_WITHIN);
}
