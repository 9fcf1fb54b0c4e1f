/** What the operator calls the server: the page that was sent says it (src/web/console.ts). */

const { name = 'Nuncio', logo = '' } = document.documentElement.dataset;

export const brandName = name;
/** Empty where there is none. */
export const brandLogo = logo;
