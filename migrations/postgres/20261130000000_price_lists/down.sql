DROP TABLE price_lists;
