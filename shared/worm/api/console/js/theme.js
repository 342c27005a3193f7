// A classic script in the head: the chosen theme holds before the first paint. Without a choice the system decides.
(() => {
  const chosen = localStorage.getItem("worm.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
