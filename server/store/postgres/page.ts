/** Reads lists by the key (time, id), so that entries that come or go between two pages move no others. */
import { TendonError } from "../../../kit/errors.ts";
import type { Cursor, Page, PageRequest } from "../page.ts";
import type { Queryable } from "./pool.ts";

export interface ListQuery {
  columns: string;
  from: string;
  /** Conditions with $1… for `values`; those that do not count are left out by the caller. */
  where: readonly string[];
  values: readonly unknown[];
  /** The column that says when; newest first. */
  at: string;
  /** The column that says which. */
  id: string;
  page: PageRequest;
  /** Oldest first. */
  ascending?: boolean | undefined;
}

interface Positioned {
  cursor_at: string;
  cursor_id: string;
}

/** One row more than asked for tells whether there is a next page. */
export async function listPage<Row, T>(
  db: Queryable,
  query: ListQuery,
  map: (row: Row) => T,
): Promise<Page<T>> {
  const values = [...query.values];
  const where = [...query.where];
  const { after, size } = query.page;
  const [beyond, order] = query.ascending ? [">", "asc"] : ["<", "desc"];
  if (after !== undefined) {
    checkCursor(after);
    values.push(...after);
    where.push(
      `(${query.at}, ${query.id}) ${beyond} ($${values.length - 1}::timestamptz, $${values.length})`,
    );
  }
  const sql = `
    select ${query.columns}, ${query.at}::text as cursor_at, ${query.id} as cursor_id
    from ${query.from}
    ${where.length === 0 ? "" : `where ${where.join(" and ")}`}
    order by ${query.at} ${order}, ${query.id} ${order}
    limit ${size + 1}`;
  const { rows } = await db.query<Row & Positioned>(sql, values);
  const shown = rows.slice(0, size);
  const last = rows.length > size ? shown.at(-1) : undefined;
  return {
    items: shown.map(map),
    next: last === undefined ? undefined : [last.cursor_at, last.cursor_id],
  };
}

/** As Postgres prints a timestamptz; with another text it would report a failure of ours. */
const TIMESTAMP = /^\d{4,6}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?[+-]\d\d(:\d\d){0,2}$/;

export function checkCursor([at]: Cursor): void {
  if (TIMESTAMP.test(at)) return;
  throw new TendonError(
    "INVALID_PAGE_TOKEN",
    "page_token: is of no page of this list; leave it out for the first page",
    {
      field: "page_token",
    },
  );
}

/** Callers know times to the millisecond, the database to the microsecond: all of that millisecond is meant. */
export function beforeEndOf(column: string, parameter: number): string {
  return `${column} < $${parameter}::timestamptz + interval '1 millisecond'`;
}
