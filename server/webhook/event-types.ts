/** What endpoints can be told. Names and meanings are those of the API that existing clients know (docs/webhooks.md). */

export const WEBHOOK_EVENT_TYPES = [
  "session.created",
  "session.updated",
  "session.archived",
  "session.deleted",
  "session.requires_action",
  "session.budget_reached",
  "session.status_run_started",
  "session.status_idled",
  "session.status_rescheduled",
  "session.status_terminated",
  "session.thread_created",
  "session.thread_idled",
  "session.thread_terminated",
  "agent.created",
  "agent.updated",
  "agent.archived",
  "agent.deleted",
  "environment.created",
  "environment.updated",
  "environment.archived",
  "environment.deleted",
  "memory_store.created",
  "memory_store.archived",
  "memory_store.deleted",
  "vault.created",
  "vault.archived",
  "vault.deleted",
  "vault_credential.created",
  "vault_credential.archived",
  "vault_credential.deleted",
  "vault_credential.refresh_failed",
] as const;

/** All types, those of later versions too. */
export const EVERY_TYPE = "*";
