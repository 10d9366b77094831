DROP TABLE missing_prices;
