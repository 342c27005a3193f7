// The part of the address that is a query of a collection, as the API takes it.

export function queryOf(query) {
  const of = (name) => query.get(name) || null;
  return { filter: of("filter"), sort: of("sort"), select: of("columns"), at: of("at"), branch: of("branch") };
}
