// Runs before the page is drawn, so that a dark page does not flash white. In a file, because the policy allows no script in a page.
{
  const chosen = localStorage.getItem('vitepress-theme-appearance') || 'auto';
  const isDark =
    chosen === 'dark' || (chosen === 'auto' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.classList.toggle('dark', isDark);
  document.documentElement.classList.toggle('mac', /Mac|iPhone|iPod|iPad/i.test(navigator.platform));
}
