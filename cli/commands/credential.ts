/** `tendon credential`: secrets that only proxies can use. They come from files or standard input and are never shown again. */
import { create } from "@bufbuild/protobuf";
import type { Command } from "commander";
import { newId } from "../../kit/ids.ts";
import { StartupError } from "../../kit/program.ts";
import { SEALED_VERSION, sealContent } from "../../kit/vault/sealed-content.ts";
import {
  type Credential,
  CredentialSchema,
  type CredentialUse,
  CredentialValidity,
  CredentialValiditySchema,
  ListCredentialsResponseSchema,
  type PlainSecret,
  SealedContentSchema,
  type ValidateCredentialResponse,
  ValidateCredentialResponseSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { CALL_WITHIN, EXIT_FAILED, EXIT_USAGE, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import {
  addSecretOptions,
  addUseOptions,
  KIND_OPTIONS,
  readSecret,
  type SecretOptions,
  type UseOptions,
  useOf,
} from "../credential-options.ts";
import { credentialText, useWords } from "../credential-text.ts";
import { formatFields, formatTable } from "../table.ts";
import { enumWord, parsePair } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

interface Common extends UseOptions, SecretOptions {
  name?: string;
  metadata?: Record<string, string>;
  requestId?: string;
  sealHere?: boolean;
}

/** A try may wait for another proxy's refresh. */
const TRY_WITHIN = { deadlineMs: 70_000 } as const;

export function addCredentialCommands(program: Command): void {
  const credential = program.command("credential").description("secrets that only proxies can use");
  credential.addHelpText(
    "after",
    `
Examples:
  tendon credential create vlt_01… --bearer https://mcp.example.com/mcp <token.txt
  tendon credential create vlt_01… --oauth https://mcp.example.com/mcp --token-endpoint https://auth.example.com/token \\
    --client-id my-client --secret-json tokens.json
  tendon credential validate vcrd_01…`,
  );
  addCreate(credential);
  const list = addPageOptions(credential.command("list <vault>").description("list a vault's credentials"));
  list.option("--archived", "also archived ones");
  onAction<PageOptions & { archived?: boolean }>(list, async ({ options, args, api, output }) => {
    const request = {
      vaultId: String(args[0]),
      ...pageOf(options),
      includeArchived: options.archived === true,
    };
    const page = await api.vaults.listCredentials(request, CALL_WITHIN);
    const text = () => credentialTable(page.credentials) + nextPageNote(page);
    output.message(ListCredentialsResponseSchema, page, text);
  });
  const get = credential.command("get <credential>").description("show a credential, without its secret");
  onAction(get, async ({ args, api, output }) => {
    const { credential: found } = await api.vaults.getCredential(
      { credentialId: String(args[0]) },
      CALL_WITHIN,
    );
    output.message(CredentialSchema, found!, () => credentialText(found!));
  });
  addUpdate(credential);
  addValidate(credential);
  const archive = credential
    .command("archive <credential>")
    .description("end a credential: its secret is erased, the record stays");
  onAction(archive, async ({ args, api, output }) => {
    const request = { credentialId: String(args[0]) };
    const { credential: ended } = await api.vaults.archiveCredential(request, CALL_WITHIN);
    output.message(CredentialSchema, ended!, () => credentialText(ended!));
  });
  const remove = credential.command("delete <credential>").description("erase a credential");
  onAction(remove, async ({ args, api, output }) => {
    const credentialId = String(args[0]);
    await api.vaults.deleteCredential({ credentialId }, CALL_WITHIN);
    output.value({ deleted: credentialId }, () => `${credentialId} is deleted.`);
  });
}

function addCreate(credential: Command): void {
  const command = credential.command("create <vault>").description("add a credential");
  addSecretOptions(addUseOptions(command))
    .option("--name <name>", "name for people")
    .option("--metadata <name=value>", "a pair; may be given several times", parsePair)
    .option("--seal-here", "seal the secret on this machine: the server never sees it")
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<Common>(command, async ({ options, args, api, output }) => {
    const use = useOf(options);
    if (use === undefined) throw new StartupError(`say what it is for: one of ${KIND_OPTIONS}`, EXIT_USAGE);
    const vaultId = String(args[0]);
    const plain = readSecret(options);
    const { name = "", metadata = {}, requestId = "" } = options;
    const sealed = options.sealHere === true ? await sealHere(api, vaultId, use, plain) : undefined;
    const secret = sealed?.secret ?? { form: { case: "plain" as const, value: plain } };
    const request = { vaultId, use, secret, displayName: name, metadata, requestId };
    const withId = sealed === undefined ? request : { ...request, credentialId: sealed.credentialId };
    const { credential: made } = await api.vaults.createCredential(withId, CALL_WITHIN);
    output.message(CredentialSchema, made!, () => credentialText(made!));
  });
}

async function sealHere(api: Api, vaultId: string, use: CredentialUse, secret: PlainSecret) {
  const { vault } = await api.vaults.getVault({ vaultId }, CALL_WITHIN);
  const { key } = await api.vaults.getSealingKey({}, CALL_WITHIN);
  const credentialId = newId("credential");
  const names = { workspaceId: vault!.workspaceId, vaultId, credentialId };
  const content = create(SealedContentSchema, { version: SEALED_VERSION, ...names, use, secret });
  return {
    credentialId,
    secret: { form: { case: "sealed" as const, value: await sealContent(key!, content) } },
  };
}

function addUpdate(credential: Command): void {
  const command = credential
    .command("update <credential>")
    .description(
      "change a credential; what is left out stays. A secret is read only where --secret-file or --secret-json is given",
    );
  addSecretOptions(addUseOptions(command))
    .option("--name <name>", "new name")
    .option(
      "--metadata <name=value>",
      "a pair, without a value to delete it; may be given several times",
      parsePair,
    )
    .option("--keep-rest", "fields that --secret-json leaves out stay as they are");
  onAction<Common & { keepRest?: boolean }>(command, async ({ options, args, api, output }) => {
    const { name, metadata = {}, keepRest = false } = options;
    const use = useOf(options);
    const hasSecret = options.secretFile !== undefined || options.secretJson !== undefined;
    const secret = hasSecret ? { form: { case: "plain" as const, value: readSecret(options) } } : undefined;
    const request = {
      credentialId: String(args[0]),
      metadata,
      keepRestOfSecret: keepRest,
      ...(name !== undefined && { displayName: name }),
      ...(use && { use }),
      ...(secret && { secret }),
    };
    const { credential: changed } = await api.vaults.updateCredential(request, CALL_WITHIN);
    output.message(CredentialSchema, changed!, () => credentialText(changed!));
  });
}

function addValidate(credential: Command): void {
  const command = credential
    .command("validate <credential>")
    .description("try a credential against its destination; ends with 1 unless it works");
  onAction(command, async ({ args, api, output }) => {
    const result = await api.vaults.validateCredential({ credentialId: String(args[0]) }, TRY_WITHIN);
    output.message(ValidateCredentialResponseSchema, result, () => resultText(result));
    return result.validity === CredentialValidity.VALID ? 0 : EXIT_FAILED;
  });
}

function resultText(result: ValidateCredentialResponse): string {
  const { validity, detail, httpStatus, refreshed, refreshStatus } = result;
  return formatFields([
    ["validity", enumWord(CredentialValiditySchema, validity)],
    ["detail", detail],
    ["status", httpStatus === 0 ? "" : String(httpStatus)],
    ["refresh", refreshed ? "succeeded" : refreshStatus],
  ]);
}

function credentialTable(credentials: readonly Credential[]): string {
  const rows = credentials.map((credential) => [
    credential.id,
    credential.displayName,
    ...useWords(credential.use),
    credential.archivedAt ? "archived" : credential.refreshProblem,
  ]);
  return formatTable(["ID", "NAME", "KIND", "FOR", ""], rows);
}
