/**
 * What the server keeps, by noun. Areas know these interfaces; `postgres/` implements them, one file a noun.
 * Every method is one transaction. Each says which TendonError it must fail with, and when.
 */
// Each noun's interface stands in its own file; `createPostgresStore` in postgres/store.ts puts them together.
export interface Store {
  /** Whether the database answers. Rejects with UNAVAILABLE. */
  ping(): Promise<{ version: string }>;
}
