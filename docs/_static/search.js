// A pasted error message has names and numbers that no page has, and Sphinx lists only pages with every word of a query. If no
// page has them all, list the pages that have most of them.
if (typeof Search !== "undefined") {
  const withEveryWord = Search.performTermsSearch;
  Search.performTermsSearch = (words, excluded) => {
    const found = withEveryWord(words, excluded);
    if (found.length > 0 || words.size < 4) return found;
    const pages = new Map();
    for (const word of words) {
      for (const page of withEveryWord(new Set([word]), excluded)) {
        const count = (pages.get(page[0])?.count ?? 0) + 1;
        pages.set(page[0], { page, count });
      }
    }
    return [...pages.values()]
      .filter(({ count }) => count > words.size / 2)
      .map(({ page, count }) => page.with(4, count / words.size)); // the score
  };
}
