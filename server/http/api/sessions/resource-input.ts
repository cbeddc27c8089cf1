/** What existing clients say of something that a session is to be given (pure). */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import type { GitCheckoutSchema } from "../../../../proto/gen/tendon/v1/git_pb.js";
import { MemoryAccess } from "../../../../proto/gen/tendon/v1/memory_pb.js";
import type { SessionResourceInputSchema } from "../../../../proto/gen/tendon/v1/session_pb.js";
import type { Fields } from "../fields.ts";

type ResourceInput = MessageInitShape<typeof SessionResourceInputSchema>;

const KINDS: Readonly<Record<string, (resource: Fields) => ResourceInput>> = {
  memory_store: memoryStoreInput,
  file: fileInput,
  github_repository: repositoryInput,
};

/** Throws INVALID_FIELD with the path in their words. */
export function resourceInput(resource: Fields): ResourceInput {
  const type = resource.word("type", Object.keys(KINDS));
  if (type === undefined) throw invalidField(resource.at("type"), "is required");
  return KINDS[type]!(resource);
}

function memoryStoreInput(resource: Fields): ResourceInput {
  resource.only("type", "memory_store_id", "access", "instructions");
  const access = resource.word("access", ["read_write", "read_only"]);
  const value = {
    memoryStoreId: resource.requiredText("memory_store_id"),
    access: access === "read_only" ? MemoryAccess.READ_ONLY : MemoryAccess.READ_WRITE,
    instructions: resource.text("instructions") ?? "",
  };
  return { kind: { case: "memoryStore", value } };
}

/** Of any host that speaks git over HTTPS. */
function repositoryInput(resource: Fields): ResourceInput {
  resource.only("type", "url", "authorization_token", "checkout", "mount_path", "tendon");
  const checkout = resource.object("checkout");
  const extension = resource.object("tendon");
  extension?.only("user_name", "push_branches");
  const value = {
    url: resource.requiredText("url"),
    authorizationToken: resource.text("authorization_token") ?? "",
    userName: extension?.text("user_name") ?? "",
    mountPath: resource.text("mount_path") ?? "",
    pushBranches: [...(extension?.texts("push_branches") ?? [])],
    ...(checkout && { checkout: { at: checkoutInput(checkout) } }),
  };
  return { kind: { case: "gitRepository", value } };
}

type CheckoutInit = Extract<MessageInitShape<typeof GitCheckoutSchema>, { $typeName?: never }>["at"] & object;

function checkoutInput(checkout: Fields): CheckoutInit {
  const type = checkout.word("type", ["branch", "tag", "commit"]);
  if (type === undefined) throw invalidField(checkout.at("type"), "is required");
  if (type === "commit") {
    checkout.only("type", "sha");
    return { case: "commit", value: checkout.requiredText("sha") };
  }
  checkout.only("type", "name");
  return { case: type, value: checkout.requiredText("name") };
}

function fileInput(resource: Fields): ResourceInput {
  resource.only("type", "file_id", "mount_path");
  const value = { fileId: resource.requiredText("file_id"), mountPath: resource.text("mount_path") ?? "" };
  return { kind: { case: "file", value } };
}
