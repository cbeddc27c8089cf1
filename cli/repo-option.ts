/** `--repo`: a git repository for a new session, as people write one. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { SessionResourceInputSchema } from "../proto/gen/tendon/v1/session_pb.js";

/**
 * `url[#[ref][@path]]`: 40 hex digits are a commit, `tag:name` is a tag, any other ref a branch. Whether that is a
 * repository the server says.
 */
export function repositoryInput(
  text: string,
  pushBranches: readonly string[] = [],
): MessageInitShape<typeof SessionResourceInputSchema> {
  const [, url = "", rest = ""] = /^([^#]*)(?:#(.*))?$/s.exec(text) ?? [];
  const [, ref = "", mountPath = ""] = /^(.*?)(?:@([^@]*))?$/s.exec(rest) ?? [];
  const checkout = ref === "" ? {} : { checkout: { at: checkoutOf(ref) } };
  const value = { url, mountPath, pushBranches: [...pushBranches], ...checkout };
  return { kind: { case: "gitRepository", value } };
}

function checkoutOf(ref: string) {
  if (/^[0-9a-f]{40}$/.test(ref)) return { case: "commit" as const, value: ref };
  if (ref.startsWith("tag:")) return { case: "tag" as const, value: ref.slice("tag:".length) };
  return { case: "branch" as const, value: ref };
}
