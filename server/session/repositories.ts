/** What a new session is given of git repositories. Pure: whether they can be read is seen when a hand clones them. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampNow } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import { gitDestinations } from "../../kit/vault/destination.ts";
import {
  AttachedGitRepositorySchema,
  type GitCheckout,
  type GitRepositoryInput,
} from "../../proto/gen/tendon/v1/git_pb.js";
import type { SessionResourceInput, SessionResourceSchema } from "../../proto/gen/tendon/v1/session_pb.js";

const MAX_REPOSITORIES = 16;
/** In the field's words; a hand has its working directory there, or elsewhere. */
const ROOT = "/workspace";

/** By their index among the resources. `slots`: besides the default one. INVALID_FIELD. */
export function attachRepositories(
  resources: readonly SessionResourceInput[],
  slots: readonly string[],
): Map<number, MessageInitShape<typeof SessionResourceSchema>> {
  const places: { readonly slot: string; readonly mountPath: string }[] = [];
  const attached = new Map<number, MessageInitShape<typeof SessionResourceSchema>>();
  for (const [index, { kind }] of resources.entries()) {
    if (kind.case !== "gitRepository") continue;
    const input = kind.value;
    const field = `resources[${index}].git_repository`;
    if (places.length >= MAX_REPOSITORIES)
      throw invalidField(field, `a session may be given ${MAX_REPOSITORIES} repositories`);
    const url = checkedUrl(input, field);
    const { slot, checkout, pushBranches } = input;
    if (slot !== "" && !slots.includes(slot))
      throw invalidField(`${field}.slot`, `the session has no slot "${slot}"`);
    refuseNul(pushBranches, `${field}.push_branches`);
    checkName(checkout, `${field}.checkout`);
    const mountPath = mountPathOf(input, field);
    const other = places.find((place) => place.slot === slot && overlap(place.mountPath, mountPath));
    if (other !== undefined)
      throw invalidField(`${field}.mount_path`, `"${mountPath}" and "${other.mountPath}" lie in one another`);
    places.push({ slot, mountPath });
    const value = create(AttachedGitRepositorySchema, {
      url,
      slot,
      mountPath,
      pushBranches,
      createdAt: timestampNow(),
      ...(checkout !== undefined && { checkout }),
    });
    attached.set(index, { id: newId("sessionResource"), kind: { case: "gitRepository", value } });
  }
  return attached;
}

/** Without slashes at its end. What no credential can be found by, and no git can mean, is none. */
function checkedUrl({ url }: GitRepositoryInput, field: string): string {
  const text = url.replace(/\/+$/, "");
  if (gitDestinations(text) === undefined)
    throw invalidField(
      `${field}.url`,
      "must be https://host[:port]/path, without user, password, query, fragment and spaces",
    );
  return text;
}

/** What git itself takes for a branch or tag, and not for an option or another kind of name. */
function checkName(checkout: GitCheckout | undefined, field: string): void {
  const { case: at, value: name } = checkout?.at ?? { case: undefined };
  if (at !== "branch" && at !== "tag") return;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const isName = !/^[-/]|[\x00-\x20\x7f~^:?*[\\]|\.\.|@\{|\/\/|(^|\/)\.|\.lock(\/|$)|[./]$|^@$/.test(name);
  if (!isName) throw invalidField(`${field}.${at}`, `"${name.slice(0, 64)}" is no name of a ${at}`);
}

function mountPathOf({ mountPath, url }: GitRepositoryInput, field: string): string {
  const path = mountPath === "" ? nameOf(url) : mountPath;
  if (path === undefined)
    throw invalidField(`${field}.mount_path`, "is needed: the URL does not end in a name for a directory");
  const absolute = path.startsWith("/") ? path : `${ROOT}/${path}`;
  const [, root, ...parts] = absolute.replace(/\/+$/, "").split("/");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const isPlain = parts.every((part) => !/^\.{0,2}$|[\x00-\x1f\x7f]/.test(part) && part !== ".git");
  if (`/${root}` !== ROOT || parts.length === 0 || !isPlain)
    throw invalidField(`${field}.mount_path`, `must be a path below ${ROOT}, without "." and ".." in it`);
  return `${ROOT}/${parts.join("/")}`;
}

/** As git names a clone. */
function nameOf(url: string): string | undefined {
  const last = /([^/]+?)(?:\.git)?\/*$/.exec(url)?.[1] ?? "";
  return /^[\w+-][\w.+-]{0,127}$/.test(last) ? last : undefined;
}

function overlap(one: string, other: string): boolean {
  return `${one}/`.startsWith(`${other}/`) || `${other}/`.startsWith(`${one}/`);
}
